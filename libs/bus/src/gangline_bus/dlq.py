"""The dead letter queue: refused records with their reason, bounded in size and in number.

Whatever a writer sends, it is refused and never ends a reader. So a record is cut to what the DLQ
takes, and beyond `limit` records of a topic within an hour the next ones are counted and not kept.
A restart forgets that count: it bounds what the DLQ costs, and nothing else depends on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import datetime, timedelta

import structlog
from opentelemetry import metrics

from gangline_bus.codec import FromLaterError, UndecodableError
from gangline_bus.ports import Headers, OutRecord, Record
from gangline_bus.topics import TopicNames
from gangline_schemas.catalog import catalog

log = structlog.get_logger(__name__)

KEPT_VALUE_BYTES = 1024 * 1024
_KEPT_KEY_BYTES = 1024
_KEPT_HEADER_BYTES = 1024
_KEPT_HEADERS = 32
_REFUSED = metrics.get_meter(__name__).create_counter(
    "gangline.bus.refused",
    description="Records that were refused; kept: whether they are in the DLQ",
)


def refused_record(
    record: Record, error: UndecodableError, *, dlq: str, trace: str = ""
) -> OutRecord:
    """The record for `dlq`: the message as it was, and why and where it was refused.

    A value above 1 MiB is cut, headers above 1 KiB and beyond the first 32 are left out. `trace` is
    the place where its decision failed. Neither it nor the reason contains a value of the message.
    """
    added: list[tuple[str, bytes]] = [
        ("gangline_dlq_error", _text(error.reason)),
        ("gangline_dlq_topic", record.topic.encode()),
        ("gangline_dlq_partition", str(record.partition).encode()),
        ("gangline_dlq_offset", str(record.offset).encode()),
    ]
    if trace:
        added.append(("gangline_dlq_trace", _text(trace)))
    if len(record.value) > KEPT_VALUE_BYTES:
        added.append(("gangline_dlq_value_bytes", str(len(record.value)).encode()))
    key = None if record.key is None else record.key[:_KEPT_KEY_BYTES]
    kept = tuple(_kept(record.headers))[:_KEPT_HEADERS]
    return OutRecord(dlq, key, record.value[:KEPT_VALUE_BYTES], kept + tuple(added))


def _kept(headers: Headers) -> Iterator[tuple[str, bytes]]:
    for name, value in headers:
        if value is not None and len(name) + len(value) <= _KEPT_HEADER_BYTES:
            yield name, value


def _text(text: str) -> bytes:
    return text.encode(errors="replace")[:_KEPT_HEADER_BYTES]


class DlqLimit:
    """At most `limit` refused records of a topic within `window` are kept; others are counted."""

    def __init__(self, limit: int = 10_000, window: timedelta = timedelta(hours=1)) -> None:
        self._limit = limit
        self._window = window
        self._times: dict[str, deque[datetime]] = {}
        self._full: set[str] = set()

    def keeps(self, record: Record, error: UndecodableError, now: datetime) -> bool:
        """Count one more, say so, and whether it is to be kept."""
        times = self._times.setdefault(record.topic, deque())
        while times and not times[0] <= now <= times[0] + self._window:
            times.popleft()
        kept = len(times) < self._limit
        _REFUSED.add(1, {"topic": record.topic, "kept": kept})
        if kept:
            times.append(now)
            self._full.discard(record.topic)
            log.warning(
                "refused",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                reason=error.reason,
            )
        elif record.topic not in self._full:
            self._full.add(record.topic)
            log.error(
                "refused records are no longer kept in the DLQ, only counted",
                topic=record.topic,
                limit=self._limit,
                window_s=self._window.total_seconds(),
            )
        return kept


class DeadLetters:
    """The refused records of one reader: those that the DLQ keeps, up to `limit` in an hour."""

    def __init__(self, names: TopicNames, limit: int) -> None:
        self._names = names
        self._limit = DlqLimit(limit)
        self._logs = {names.name(topic) for topic, of in catalog().items() if of.kind == "log"}

    def refuse(
        self, record: Record, error: UndecodableError, now: datetime, trace: str = ""
    ) -> list[OutRecord]:
        """The record for the DLQ; [] for what is only counted."""
        if isinstance(error, FromLaterError) and record.topic in self._logs:
            return []  # it is counted, and the log keeps it
        if not self._limit.keeps(record, error, now):
            return []
        return [refused_record(record, error, dlq=self._names.dlq(record.topic), trace=trace)]

    def count(self, record: Record, error: UndecodableError, now: datetime) -> None:
        """Count and log one that was read, but not noted in the soft state."""
        self._limit.keeps(record, error, now)
