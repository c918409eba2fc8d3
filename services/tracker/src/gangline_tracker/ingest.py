"""From the bus into ClickHouse: rows equal records, whatever crashes when.

The cycle of one pipeline (one group of topics, one table that holds the offsets, one thread)
1. Read max(offset) of each partition from the table; continue at the offset after it.
2. Poll; decode into the open batch. Unreadable records are counted and go to the DLQ.
3. When the batch is full or old enough: let a second thread write it, once the batch before is
   written. Derived tables first (the same rows however often), then one INSERT of one block into
   the table with the offsets. That INSERT is atomic, so the rows and the position can never
   disagree. Meanwhile the next batch is read and decoded.

The position lives with the data and nowhere else. There is nothing to commit, and the next process
begins with step 1 after a crash at any point. For the same reason an INSERT of unknown outcome ends
the pipeline. One process may write at a time; the embedded engine enforces that by its lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import pyarrow as pa
import structlog

from gangline_bus.codec import Received, UndecodableError, receive
from gangline_bus.dlq import DlqLimit, refused_record
from gangline_bus.poison import trace_of
from gangline_bus.ports import Bus, Reader, Record, TopicPartition, Writer
from gangline_bus.topics import TopicNames
from gangline_schemas.catalog import Topic
from gangline_tracker.batches import Batch, HeartbeatBatch, LogBatch, NewBatch, Removal, StepBatch
from gangline_tracker.metric_batch import MetricBatch

log = structlog.get_logger(__name__)

_POLL_S = 0.2
_WANTED_POLL_S = 0.05
Positions = dict[TopicPartition, int]
"""The next offset to read of each partition, by full topic name."""


class PositionError(Exception):
    """The table has seen offsets that the bus does not have: they don't belong together."""


class Sink(Protocol):
    """Where a pipeline's rows go. Serves one call at a time."""

    def positions(self, group: Group) -> dict[tuple[str, int], int]:
        """The next offset by (topic without prefix, partition), as the table has it."""

    def insert(self, table: str, rows: pa.Table) -> None:
        """Write all rows as one atomic, acknowledged INSERT."""

    def remove(self, table: str, run_ids: Sequence[str]) -> None:
        """Have the rows of these runs removed that are there now. It survives a crash."""


@dataclass(frozen=True, slots=True)
class Group:
    """Topics that share a table, and how much of them is gathered before it is written."""

    table: str
    topics: tuple[Topic, ...]
    flush_after: timedelta
    max_rows: int
    dead_letters: bool
    """Whether this is the consumer that puts refused records into the DLQ."""

    @property
    def patient(self) -> bool:
        """Whether records may come 250 ms later."""
        return _STREAMS.issuperset(self.topics)


_STREAMS = {Topic.STEPS, Topic.LOGS, Topic.HEARTBEATS, Topic.METRICS}
_NOT_KEPT = {Topic.PROGRESS, Topic.VITALS, Topic.TOKENS}
STEPS = Group("steps", (Topic.STEPS,), timedelta(milliseconds=500), 500_000, dead_letters=True)
LOGS = Group("logs", (Topic.LOGS,), timedelta(milliseconds=500), 100_000, dead_letters=True)
HEARTBEATS = Group("heartbeats", (Topic.HEARTBEATS,), timedelta(seconds=5), 50_000, True)
METRICS = Group(
    # Clients log point by point, and each INSERT costs 20 ms and more of CPU. Readers wait for what
    # they have just logged, so their queries are `wanted`, as far as they come through us.
    "metric_points",
    (Topic.METRICS,),
    timedelta(seconds=1),
    500_000,
    dead_letters=True,
)
EVENTS = Group(
    "events",
    tuple(t for t in Topic if t not in _STREAMS | _NOT_KEPT),
    timedelta(milliseconds=100),
    20_000,
    dead_letters=False,  # the services that decide on these topics do
)
GROUPS = (EVENTS, STEPS, LOGS, HEARTBEATS, METRICS)
STREAM_BATCHES: dict[str, NewBatch] = {
    "steps": StepBatch,
    "logs": LogBatch,
    "heartbeats": HeartbeatBatch,
    "metric_points": MetricBatch,
}


@dataclass(slots=True)
class Counts:
    """Counters of a pipeline since its start."""

    records: int = 0
    rows: int = 0
    refused: int = 0
    missed: int = 0
    """Records that had expired on the bus before they could be read."""


class Pipeline:
    """One group's way into its table. Make a new one after any error."""

    def __init__(
        self,
        group: Group,
        bus: Bus,
        sink: Sink,
        new_batch: NewBatch,
        clock: Callable[[], datetime],
        *,
        names: TopicNames | None = None,
        max_poll: int = 2_000,
        counts: Counts | None = None,
        wanted: threading.Event | None = None,
    ) -> None:
        """`wanted`: set by readers that wait; what is gathered, or comes next, is written now."""
        self.group = group
        self._wanted = wanted
        self.counts = counts or Counts()
        self._bus = bus
        self._sink = sink
        self._new_batch = new_batch
        self._clock = clock
        self._names = names or TopicNames()
        self._max_poll = max_poll
        self._batch: Batch = new_batch()
        self._opened: datetime | None = None
        self._reader: Reader = bus.reader(f"tracker.{group.table}", patient=group.patient)
        self._writer: Writer | None = None
        self._limit = DlqLimit()
        self._writes = ThreadPoolExecutor(1, thread_name_prefix=f"insert-{group.table}")
        self._writing: Future[None] | None = None

    def seek(self) -> Positions:
        """Step 1. Raises PositionError when the bus is not the one that the table knows."""
        seen = self._sink.positions(self.group)
        places = [p for topic in self.group.topics for p in self._names.places(self._bus, topic)]
        starts, ends = self._bus.start_offsets(places), self._bus.end_offsets(places)
        positions: Positions = {}
        for place in places:
            topic = self._names.topic(place.topic)
            wanted = seen.get((topic.value, place.partition), 0)
            if wanted > ends[place]:
                raise PositionError(
                    f"the table {self.group.table} holds {place.topic}[{place.partition}] up to "
                    f"offset {wanted - 1}, but the topic ends at {ends[place]}: the database "
                    "belongs to another bus; give this one a fresh database"
                )
            if wanted and wanted < starts[place]:
                missed = starts[place] - wanted
                self.counts.missed += missed
                log.error("records expired unread", place=str(place), missed=missed)
            positions[place] = max(wanted, starts[place])
        self._reader.assign(positions)
        return positions

    def cycle(self, timeout_s: float) -> int:
        """Steps 2 and 3, once; how many records were taken. Raises what an INSERT raised."""
        if self._writing is not None and self._writing.done():
            self._settle()  # no further record may come that would wait for it
        records = self._reader.poll(self._max_poll, timeout_s)
        for record in records:
            self._take(record)
        if self._due():
            self._hand_over()
        return len(records)

    def flush(self) -> None:
        """Write what is gathered, and wait for it."""
        self._hand_over()
        self._settle()

    def _hand_over(self) -> None:
        self._settle()
        if self._wanted is not None:
            self._wanted.clear()
        batch, self._batch, self._opened = self._batch, self._new_batch(), None
        self._writing = self._writes.submit(self._write, batch, self._clock())

    def _settle(self) -> None:
        """Wait for the batch that is being written. Raises what its INSERT raised."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, batch: Batch, now: datetime) -> None:
        inserts = batch.inserts(now)
        last = 0
        for item in inserts:
            if isinstance(item, Removal):
                self._sink.remove(item.table, item.run_ids)
            else:
                self._sink.insert(item.table, item.rows)
                last = item.rows.num_rows
        self.counts.rows += last

    def run(
        self,
        stopping: threading.Event,
        beat: Callable[[], None],
        note: Callable[[Callable[[], Positions]], None] = lambda _: None,
    ) -> None:
        """Cycle until `stopping`, then write the open batch. No INSERT runs afterwards.

        `note` gets what is still unread.
        """
        try:
            self.seek()
            while not stopping.is_set():
                beat()
                self.cycle(_POLL_S if self._wanted is None else _WANTED_POLL_S)
                note(self._reader.behind)
            self.flush()
        finally:
            self.close()

    def close(self) -> None:
        """Wait for the INSERT that runs, and close the reader and the producer."""
        self._writes.shutdown()
        self._reader.close()
        if self._writer is not None:
            self._writer.close()

    def _take(self, record: Record) -> None:
        try:
            received = receive(record)
            self._add(received)
        except UndecodableError as error:
            self._refuse(record, error)
            return
        self.counts.records += 1
        if self._opened is None:
            self._opened = self._clock()
        if self._batch.rows() >= self.group.max_rows:
            self._hand_over()

    def _add(self, received: Received) -> None:
        try:
            self._batch.add(received)
        except TypeError as error:
            raise UndecodableError(f"{received.envelope.type}: {error}") from None
        except Exception as error:
            reason = f"{received.envelope.type}: no row ({trace_of(error)})"
            raise UndecodableError(reason) from error

    def _due(self) -> bool:
        if self._opened is None:
            return False
        if self._wanted is not None and self._wanted.is_set():
            return True
        return self._clock() - self._opened >= self.group.flush_after

    def _refuse(self, record: Record, error: UndecodableError) -> None:
        self.counts.refused += 1
        kept = self._limit.keeps(record, error, self._clock())
        if not (kept and self.group.dead_letters):
            return
        if self._writer is None:
            self._writer = self._bus.writer()
        self._writer.send(refused_record(record, error, dlq=self._names.dlq(record.topic)))
