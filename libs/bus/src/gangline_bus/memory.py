"""A bus in memory that behaves like Kafka in all that a decider can notice.

- Offsets have gaps where control records stand.
- Pending transactions hold back the last stable offset.
- Writers have epochs, and groups have one owner per partition.
- Offsets that are not committed again are forgotten after `offsets_retention_ms`.

`Broker` is the shared part; it outlives its clients, as a broker does. `MemoryBus` is one process's
connection to it, for one thread at a time; connections may be used side by side. Nothing reads a
clock.

`Broker.faults` lets a simulation crash a client at a point, lose the bus, delay an EndTxn, or
deliver a record twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gangline_bus.murmur import partition_of
from gangline_bus.ports import (
    BusError,
    BusUnavailable,
    Fenced,
    Note,
    OutRecord,
    Record,
    TopicPartition,
    TopicSettings,
)


class _Status(Enum):
    COMMITTED = "committed"
    PENDING = "pending"
    ABORTED = "aborted"
    CONTROL = "control"


@dataclass(slots=True)
class _Entry:
    record: Record
    status: _Status


@dataclass(slots=True)
class _Transaction:
    """The one open transaction of a writer."""

    entries: list[_Entry] = field(default_factory=list)
    places: dict[TopicPartition, int] = field(default_factory=dict)  # to its first offset there
    offsets: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    note: Note | None = None


@dataclass(slots=True)
class _WriterState:
    epoch: int = 0
    open: _Transaction | None = None


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


class Broker:
    """The log, the transactions and the groups. `clock_ms` gives the records' time stamps."""

    offsets_retention_ms = 7 * 86_400_000  # as Kafka's own default

    def __init__(self, clock_ms: Callable[[], int] = lambda: 0) -> None:
        self._clock_ms = clock_ms
        self._logs: dict[TopicPartition, list[_Entry]] = {}
        self._counts: dict[str, int] = {}
        self._writers: dict[str, _WriterState] = {}
        self._offsets: dict[str, dict[TopicPartition, int]] = {}
        self._kept_since_ms: dict[tuple[str, TopicPartition], int] = {}
        self._notes: dict[tuple[str, TopicPartition], str] = {}
        self._members: dict[tuple[str, str], list[str]] = {}
        self._lock = threading.RLock()
        self.faults = Faults()
        self.down = False

    def connect(self, client: str) -> MemoryBus:
        """One process's connection; `client` must be unique among living processes."""
        return MemoryBus(self, client)

    def lose(self, client: str) -> None:
        """The group sessions of a dead client end; its partitions go to other members."""
        with self._lock:
            for members in self._members.values():
                if client in members:
                    members.remove(client)

    def late_end(self, transactional_id: str, epoch: int, *, commit: bool) -> bool:
        """A delayed EndTxn arrives; it acts only when the writer's epoch is still that one."""
        with self._lock:
            writer = self._writers[transactional_id]
            if writer.epoch != epoch or writer.open is None:
                return False
            self._end(writer, commit=commit)
            return True

    def dump(self, topic: str) -> list[Record]:
        """All committed records of a topic, by partition and offset: for checks after a run."""
        found = []
        for place in sorted(self._logs):
            if place.topic == topic:
                found += [e.record for e in self._logs[place] if e.status is _Status.COMMITTED]
        return found

    def _reachable(self) -> None:
        if self.down:
            raise BusUnavailable("the broker is away")

    def _log(self, place: TopicPartition) -> list[_Entry]:
        try:
            return self._logs[place]
        except KeyError:
            raise BusError(f"no such partition: {place.topic}[{place.partition}]") from None

    def _append(self, record: OutRecord, status: _Status) -> tuple[_Entry, TopicPartition]:
        count = self._counts.get(record.topic)
        if count is None:
            raise BusError(f"no such topic: {record.topic}")
        partition = record.partition
        if partition is None:
            partition = partition_of(record.key, count)
        place = TopicPartition(record.topic, partition)
        log = self._log(place)
        entry = _Entry(
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

    def _end(self, writer: _WriterState, *, commit: bool) -> None:
        transaction = writer.open
        if transaction is None:
            return
        for entry in transaction.entries:
            entry.status = _Status.COMMITTED if commit else _Status.ABORTED
        for place in sorted(transaction.places):
            marker = OutRecord(place.topic, None, b"", (), place.partition)
            self._append(marker, _Status.CONTROL)
        if commit:
            for (group, place), offset in transaction.offsets.items():
                self._keep_offset(group, place, offset)
            if transaction.note is not None:
                note = transaction.note
                self._notes[note.group, note.place] = note.text
        writer.open = None

    def _keep_offset(self, group: str, place: TopicPartition, offset: int) -> None:
        self._offsets.setdefault(group, {})[place] = offset
        self._kept_since_ms[group, place] = self._clock_ms()

    def _kept_offset(self, group: str, place: TopicPartition) -> int | None:
        offset = self._offsets.get(group, {}).get(place)
        if offset is None:
            return None
        age_ms = self._clock_ms() - self._kept_since_ms[group, place]
        return offset if age_ms < self.offsets_retention_ms else None

    def _stable_end(self, place: TopicPartition) -> int:
        open_at = [
            writer.open.places[place]
            for writer in self._writers.values()
            if writer.open is not None and place in writer.open.places
        ]
        return min(open_at, default=len(self._log(place)))


class MemoryBus:
    """`ports.Bus` over a `Broker`."""

    def __init__(self, broker: Broker, client: str) -> None:
        self.broker = broker
        self.client = client

    def create_topics(self, topics: Iterable[TopicSettings]) -> None:
        """Create what is missing."""
        with self.broker._lock:
            for topic in topics:
                if topic.name in self.broker._counts:
                    continue
                self.broker._counts[topic.name] = topic.partitions
                for partition in range(topic.partitions):
                    self.broker._logs[TopicPartition(topic.name, partition)] = []

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has."""
        self.broker._reachable()
        try:
            return self.broker._counts[topic]
        except KeyError:
            raise BusError(f"no such topic: {topic}") from None

    def end_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offsets."""
        self.broker._reachable()
        with self.broker._lock:
            return {place: self.broker._stable_end(place) for place in places}

    def written_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Ends with the records of open transactions."""
        self.broker._reachable()
        return {place: len(self.broker._log(place)) for place in places}

    def start_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Always 0: nothing expires here."""
        self.broker._reachable()
        return {place: 0 for place in places if self.broker._log(place) is not None}

    def committed(
        self, group: str, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """The group's next offsets; BusUnavailable while a transaction on them is open."""
        self.broker._reachable()
        with self.broker._lock:
            wanted = list(places)
            for writer in self.broker._writers.values():
                if writer.open is None:
                    continue
                if any((group, place) in writer.open.offsets for place in wanted):
                    raise BusUnavailable("an open transaction holds these offsets")
            return {place: self.broker._kept_offset(group, place) for place in wanted}

    def note(self, group: str, place: TopicPartition) -> str:
        """The text of the last committed note."""
        self.broker._reachable()
        with self.broker._lock:
            return self.broker._notes.get((group, place), "")

    def writer(self) -> MemoryWriter:
        """A stream writer."""
        return MemoryWriter(self)

    def transactional_writer(self, transactional_id: str) -> MemoryTransactionalWriter:
        """Fence earlier writers of the id, end what they left open, and take their place."""
        return MemoryTransactionalWriter(self, transactional_id)

    def reader(self, name: str) -> MemoryReader:
        """A reader of committed records."""
        return MemoryReader(self)

    def join(self, group: str, topic: str) -> MemoryMember:
        """Join a group."""
        return MemoryMember(self, group, topic)


class MemoryWriter:
    """`ports.Writer`: every record is safe as soon as it is sent."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus

    def send(
        self, record: OutRecord, on_delivery: Callable[[BusError | None], None] | None = None
    ) -> None:
        """Append, as many times as the faults say."""
        broker = self._bus.broker
        broker.faults.at("send", self._bus.client)
        with broker._lock:
            error: BusError | None = None
            try:
                broker._reachable()
                for _ in range(broker.faults.copies(record, self._bus.client)):
                    broker._append(record, _Status.COMMITTED)
            except BusError as problem:
                error = problem
        if on_delivery is not None:
            on_delivery(error)
        elif error is not None:
            raise error

    def flush(self, timeout_s: float) -> int:
        """Nothing ever waits."""
        return 0

    def close(self) -> None:
        """Nothing to close."""


class MemoryTransactionalWriter:
    """`ports.TransactionalWriter`."""

    def __init__(self, bus: MemoryBus, transactional_id: str) -> None:
        broker = bus.broker
        broker.faults.at("takeover", bus.client)
        broker._reachable()
        with broker._lock:
            self.state = broker._writers.setdefault(transactional_id, _WriterState())
            self.state.epoch += 1
            broker._end(self.state, commit=False)
            self.epoch = self.state.epoch
        self._bus = bus
        broker.faults.at("takeover.fenced", bus.client)

    def commit(
        self,
        records: Sequence[OutRecord],
        offsets: Mapping[TopicPartition, int],
        group: str,
        note: Note | None = None,
    ) -> None:
        """One transaction, with a crash point between each of its steps."""
        broker, client = self._bus.broker, self._bus.client
        broker.faults.at("commit.begin", client)
        self._alive()
        with broker._lock:
            if self.state.open is not None:
                raise BusError("the last transaction is still open")
            transaction = self.state.open = _Transaction()
            for record in records:
                entry, place = broker._append(record, _Status.PENDING)
                transaction.entries.append(entry)
                transaction.places.setdefault(place, entry.record.offset)
        broker.faults.at("commit.produced", client)
        self._alive()
        transaction.offsets.update({(group, place): at for place, at in offsets.items()})
        transaction.note = note
        broker.faults.at("commit.offsets", client)
        self._alive()
        if broker.faults.keeps_end(client, commit=True):
            raise BusUnavailable("no answer to EndTxn")
        with broker._lock:
            if self.state.open is not transaction:
                raise Fenced("another client ended the transaction")
            broker._end(self.state, commit=True)
        broker.faults.at("commit.ended", client)

    def check_connection(self) -> None:
        """A connection in memory is never lost between two calls."""

    def close(self) -> None:
        """End an open transaction without its records."""
        with self._bus.broker._lock:
            if self.state.epoch == self.epoch:
                self._bus.broker._end(self.state, commit=False)

    def _alive(self) -> None:
        self._bus.broker._reachable()
        if self.state.epoch != self.epoch:
            raise Fenced("a newer writer with this id exists")


class MemoryReader:
    """`ports.Reader`: takes from its partitions in turn."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus
        self._positions: dict[TopicPartition, int] = {}

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Replace the assignment."""
        for place in positions:
            self._bus.broker._log(place)
        self._positions = dict(sorted(positions.items()))

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """The records that are there now; never waits."""
        broker = self._bus.broker
        broker.faults.at("poll", self._bus.client)
        if broker.down:
            return []
        found: list[Record] = []
        with broker._lock:
            for place, start in self._positions.items():
                log, position = broker._logs[place], start
                if position == len(log):
                    continue
                end = broker._stable_end(place)
                while position < end and len(found) < max_records:
                    entry = log[position]
                    if entry.status is _Status.COMMITTED:
                        found.append(entry.record)
                    position += 1
                while position < end and log[position].status is not _Status.COMMITTED:
                    position += 1
                self._positions[place] = position
        return found

    def positions(self) -> dict[TopicPartition, int]:
        """Next offsets."""
        return dict(self._positions)

    def close(self) -> None:
        """Forget the assignment."""
        self._positions = {}


class MemoryMember:
    """`ports.Member`: partition i belongs to member i modulo their number, in joining order."""

    def __init__(self, bus: MemoryBus, group: str, topic: str) -> None:
        self._bus = bus
        self._topic = topic
        self._members = bus.broker._members.setdefault((group, topic), [])
        with bus.broker._lock:
            self._members.append(bus.client)

    def owned(self, timeout_s: float) -> frozenset[int]:
        """The partitions owned now."""
        broker = self._bus.broker
        with broker._lock:
            if broker.down or self._bus.client not in self._members:
                return frozenset()
            mine, count = self._members.index(self._bus.client), len(self._members)
            return frozenset(range(mine, broker._counts[self._topic], count))

    def close(self) -> None:
        """Leave."""
        with self._bus.broker._lock:
            if self._bus.client in self._members:
                self._members.remove(self._bus.client)
