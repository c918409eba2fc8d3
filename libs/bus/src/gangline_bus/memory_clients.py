"""One process's writers, readers and group members on the broker in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gangline_bus.memory_broker import BrokerState, Status, Transaction, WriterState
from gangline_bus.ports import (
    BusError,
    BusUnavailable,
    Fenced,
    Note,
    OutRecord,
    Record,
    TopicPartition,
)


class Connection:
    """One process's connection to the broker."""

    def __init__(self, broker: BrokerState, client: str) -> None:
        self.broker = broker
        self.client = client


class MemoryWriter:
    """`ports.Writer`: every record is safe as soon as it is sent."""

    def __init__(self, bus: Connection) -> None:
        self._bus = bus

    def send(
        self, record: OutRecord, on_delivery: Callable[[BusError | None], None] | None = None
    ) -> None:
        """Append, as many times as the faults say."""
        broker = self._bus.broker
        broker.faults.at("send", self._bus.client)
        with broker.lock:
            error: BusError | None = None
            try:
                broker.check_reachable()
                for _ in range(broker.faults.copies(record, self._bus.client)):
                    broker.append(record, Status.COMMITTED)
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

    def __init__(self, bus: Connection, transactional_id: str) -> None:
        broker = bus.broker
        broker.faults.at("takeover", bus.client)
        broker.check_reachable()
        with broker.lock:
            self.state = broker.writers.setdefault(transactional_id, WriterState())
            self.state.epoch += 1
            broker.end(self.state, commit=False)
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
        with broker.lock:
            if self.state.open is not None:
                raise BusError("the last transaction is still open")
            transaction = self.state.open = Transaction()
            for record in records:
                entry, place = broker.append(record, Status.PENDING)
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
        with broker.lock:
            if self.state.open is not transaction:
                raise Fenced("another client ended the transaction")
            broker.end(self.state, commit=True)
        broker.faults.at("commit.ended", client)

    def check_connection(self) -> None:
        """A connection in memory is never lost between two calls."""

    def close(self) -> None:
        """End an open transaction without its records."""
        with self._bus.broker.lock:
            if self.state.epoch == self.epoch:
                self._bus.broker.end(self.state, commit=False)

    def _alive(self) -> None:
        self._bus.broker.check_reachable()
        if self.state.epoch != self.epoch:
            raise Fenced("a newer writer with this id exists")


class MemoryReader:
    """`ports.Reader`: takes from its partitions in turn."""

    def __init__(self, bus: Connection) -> None:
        self._bus = bus
        self._positions: dict[TopicPartition, int] = {}

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Replace the assignment."""
        for place in positions:
            self._bus.broker.log(place)
        self._positions = dict(sorted(positions.items()))

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """The records that are there now; never waits."""
        broker = self._bus.broker
        broker.faults.at("poll", self._bus.client)
        if broker.down:
            return []
        found: list[Record] = []
        with broker.lock:
            for place, start in self._positions.items():
                log, position = broker.logs[place], start
                if position == len(log):
                    continue
                end = broker.stable_end(place)
                while position < end and len(found) < max_records:
                    entry = log[position]
                    if entry.status is Status.COMMITTED:
                        found.append(entry.record)
                    position += 1
                while position < end and log[position].status is not Status.COMMITTED:
                    position += 1
                self._positions[place] = position
        return found

    def positions(self) -> dict[TopicPartition, int]:
        """Next offsets."""
        return dict(self._positions)

    def behind(self) -> dict[TopicPartition, int]:
        """Up to the ends that readers see."""
        broker = self._bus.broker
        with broker.lock:
            return {place: broker.stable_end(place) - at for place, at in self._positions.items()}

    def close(self) -> None:
        """Forget the assignment."""
        self._positions = {}


class MemoryMember:
    """`ports.Member`: partition i belongs to member i modulo their number, in joining order."""

    def __init__(self, bus: Connection, group: str, topic: str) -> None:
        self._bus = bus
        self._topic = topic
        self._members = bus.broker.members.setdefault((group, topic), [])
        with bus.broker.lock:
            self._members.append(bus.client)

    def owned(self, timeout_s: float) -> frozenset[int]:
        """The partitions owned now."""
        broker = self._bus.broker
        with broker.lock:
            if broker.down or self._bus.client not in self._members:
                return frozenset()
            mine, count = self._members.index(self._bus.client), len(self._members)
            return frozenset(range(mine, broker.counts[self._topic], count))

    def close(self) -> None:
        """Leave."""
        with self._bus.broker.lock:
            if self._bus.client in self._members:
                self._members.remove(self._bus.client)
