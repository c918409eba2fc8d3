"""Writes gangline.progress, and reads from it what an earlier process published."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from gangline_bus.codec import UndecodableError, decode, encode
from gangline_bus.ports import Bus, BusError, Record
from gangline_bus.topics import TopicNames
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.progress import RunProgress, progress_key

SOURCE = "/gangline/live-view"
_BATCH = 5000
_POLL_S = 0.2


class Publisher:
    """Publishes events at least once. Raises BusError in `flush` when one was lost."""

    def __init__(self, bus: Bus, names: TopicNames) -> None:
        self._writer = bus.writer()
        self._topic = names.name(Topic.PROGRESS)
        self._lost: list[BusError] = []

    def publish(self, events: Iterable[RunProgress], now_ms: int) -> int:
        """Queue events of now; how many. Raises BusUnavailable when the queue is full."""
        time, count = datetime.fromtimestamp(now_ms / 1000, tz=UTC), 0
        for event in events:
            envelope = Envelope(str(uuid.uuid4()), SOURCE, time, event.run_id, event)
            key = progress_key(event.team, event.run_id)
            self._writer.send(encode(envelope, topic=self._topic, key=key), self._delivered)
            count += 1
        return count

    def flush(self, timeout_s: float) -> bool:
        """Whether everything that was queued is on the bus; waits. Raises BusError."""
        left = self._writer.flush(timeout_s)
        if self._lost:
            raise self._lost[0]
        return left == 0

    def close(self) -> None:
        """Flush for a short while and close."""
        self._writer.close()

    def _delivered(self, error: BusError | None) -> None:
        if error is not None:
            self._lost.append(error)


def published(
    bus: Bus, names: TopicNames, stopping: threading.Event, beat: Callable[[], None]
) -> list[tuple[RunProgress, int]]:
    """The newest event of each run of each team with its time, Unix milliseconds; the oldest first.

    The topic is compacted, so this reads little more than a record of each. Raises BusError.
    """
    places = names.places(bus, Topic.PROGRESS)
    ends = bus.end_offsets(places)
    reader = bus.reader("published")
    newest: dict[bytes, Record] = {}
    try:
        reader.assign(bus.start_offsets(places))
        while not stopping.is_set() and any(
            reader.positions()[place] < end for place, end in ends.items()
        ):
            beat()
            newest |= {record.key or b"": record for record in reader.poll(_BATCH, _POLL_S)}
    finally:
        reader.close()
    found = [event for record in newest.values() if (event := _read(record)) is not None]
    return sorted(found, key=lambda pair: pair[1])


def _read(record: Record) -> tuple[RunProgress, int] | None:
    try:
        envelope = decode(record)
    except UndecodableError:
        return None
    if not isinstance(envelope.data, RunProgress):
        return None
    return envelope.data, int(envelope.time.timestamp() * 1000)
