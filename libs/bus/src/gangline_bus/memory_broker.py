"""The broker in memory: partitions, transactions, epochs of writers, offsets and groups."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from gangline_bus.murmur import partition_of
from gangline_bus.ports import BusError, BusUnavailable, Note, OutRecord, Record, TopicPartition


class Status(Enum):
    """Whether readers get an entry: committed ones alone."""

    COMMITTED = "committed"
    PENDING = "pending"
    ABORTED = "aborted"
    CONTROL = "control"


@dataclass(slots=True)
class Entry:
    """A place of a partition. Control records take one too."""

    record: Record
    status: Status


@dataclass(slots=True)
class Transaction:
    """The one open transaction of a writer."""

    entries: list[Entry] = field(default_factory=list)
    places: dict[TopicPartition, int] = field(default_factory=dict)  # to its first offset there
    offsets: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    note: Note | None = None


@dataclass(slots=True)
class WriterState:
    """The newest writer of a transactional id."""

    epoch: int = 0
    open: Transaction | None = None


class Faults:
    """The faults that a simulation can inject. Every method is a no-op unless overridden."""

    def at(self, point: str, client: str) -> None:
        """Called at each point of a client's work; may raise to crash or cut off the client.

        Points: poll, send, takeover, takeover.fenced, commit.begin, commit.produced,
        commit.offsets, commit.ended.
        """

    def copies(self, record: OutRecord, client: str) -> int:
        """How many times a stream record arrives (2: the producer's retry was not recognised)."""
        return 1

    def keeps_end(self, client: str, commit: bool) -> bool:
        """Whether the EndTxn of this client gets lost on its way and may arrive later."""
        return False


class BrokerState:
    """The logs, transactions and groups. Calls hold `lock`, except those that read one value."""

    offsets_retention_ms = 7 * 86_400_000  # as Kafka's own default

    def __init__(self, clock_ms: Callable[[], int] = lambda: 0) -> None:
        self._clock_ms = clock_ms
        self.logs: dict[TopicPartition, list[Entry]] = {}
        self.counts: dict[str, int] = {}
        self.writers: dict[str, WriterState] = {}
        self.offsets: dict[str, dict[TopicPartition, int]] = {}
        self._kept_since_ms: dict[tuple[str, TopicPartition], int] = {}
        self.notes: dict[tuple[str, TopicPartition], str] = {}
        self.members: dict[tuple[str, str], list[str]] = {}
        self.lock = threading.RLock()
        self.faults = Faults()
        self.down = False

    def lose(self, client: str) -> None:
        """The group sessions of a dead client end; its partitions go to other members."""
        with self.lock:
            for members in self.members.values():
                if client in members:
                    members.remove(client)

    def late_end(self, transactional_id: str, epoch: int, *, commit: bool) -> bool:
        """A delayed EndTxn arrives; it acts only when the writer's epoch is still that one."""
        with self.lock:
            writer = self.writers[transactional_id]
            if writer.epoch != epoch or writer.open is None:
                return False
            self.end(writer, commit=commit)
            return True

    def dump(self, topic: str) -> list[Record]:
        """All committed records of a topic, by partition and offset: for checks after a run."""
        found = []
        for place in sorted(self.logs):
            if place.topic == topic:
                found += [e.record for e in self.logs[place] if e.status is Status.COMMITTED]
        return found

    def check_reachable(self) -> None:
        """Raise BusUnavailable while the broker is away."""
        if self.down:
            raise BusUnavailable("the broker is away")

    def log(self, place: TopicPartition) -> list[Entry]:
        """A partition's records, also those that no reader gets. Raises BusError."""
        try:
            return self.logs[place]
        except KeyError:
            raise BusError(f"no such partition: {place.topic}[{place.partition}]") from None

    def append(self, record: OutRecord, status: Status) -> tuple[Entry, TopicPartition]:
        """Write a record at the end of its partition."""
        count = self.counts.get(record.topic)
        if count is None:
            raise BusError(f"no such topic: {record.topic}")
        partition = record.partition
        if partition is None:
            partition = partition_of(record.key, count)
        place = TopicPartition(record.topic, partition)
        log = self.log(place)
        entry = Entry(
            Record(
                record.topic,
                partition,
                len(log),
                record.key,
                record.value,
                record.headers,
                self._clock_ms(),
            ),
            status,
        )
        log.append(entry)
        return entry, place

    def end(self, writer: WriterState, *, commit: bool) -> None:
        """End a writer's open transaction, with control records where it wrote."""
        transaction = writer.open
        if transaction is None:
            return
        for entry in transaction.entries:
            entry.status = Status.COMMITTED if commit else Status.ABORTED
        for place in sorted(transaction.places):
            marker = OutRecord(place.topic, None, b"", (), place.partition)
            self.append(marker, Status.CONTROL)
        if commit:
            for (group, place), offset in transaction.offsets.items():
                self.keep_offset(group, place, offset)
            if transaction.note is not None:
                note = transaction.note
                self.notes[note.group, note.place] = note.text
        writer.open = None

    def keep_offset(self, group: str, place: TopicPartition, offset: int) -> None:
        """Commit the next offset of a group."""
        self.offsets.setdefault(group, {})[place] = offset
        self._kept_since_ms[group, place] = self._clock_ms()

    def kept_offset(self, group: str, place: TopicPartition) -> int | None:
        """The next offset of a group, unless it is forgotten."""
        offset = self.offsets.get(group, {}).get(place)
        if offset is None:
            return None
        age_ms = self._clock_ms() - self._kept_since_ms[group, place]
        return offset if age_ms < self.offsets_retention_ms else None

    def stable_end(self, place: TopicPartition) -> int:
        """The last stable offset: no open transaction wrote below it."""
        open_at = [
            writer.open.places[place]
            for writer in self.writers.values()
            if writer.open is not None and place in writer.open.places
        ]
        return min(open_at, default=len(self.log(place)))
