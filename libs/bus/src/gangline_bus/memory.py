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

from collections.abc import Iterable

from gangline_bus.memory_broker import BrokerState
from gangline_bus.memory_clients import (
    Connection,
    MemoryMember,
    MemoryReader,
    MemoryTransactionalWriter,
    MemoryWriter,
)
from gangline_bus.ports import BusError, BusUnavailable, TopicPartition, TopicSettings


class Broker(BrokerState):
    """The log, the transactions and the groups. `clock_ms` gives the records' time stamps."""

    def connect(self, client: str) -> MemoryBus:
        """One process's connection; `client` must be unique among living processes."""
        return MemoryBus(self, client)


class MemoryBus(Connection):
    """`ports.Bus` over a `Broker`."""

    def create_topics(self, topics: Iterable[TopicSettings]) -> None:
        """Create what is missing."""
        with self.broker.lock:
            for topic in topics:
                if topic.name in self.broker.counts:
                    continue
                self.broker.counts[topic.name] = topic.partitions
                for partition in range(topic.partitions):
                    self.broker.logs[TopicPartition(topic.name, partition)] = []

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has."""
        self.broker.check_reachable()
        try:
            return self.broker.counts[topic]
        except KeyError:
            raise BusError(f"no such topic: {topic}") from None

    def end_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offsets."""
        self.broker.check_reachable()
        with self.broker.lock:
            return {place: self.broker.stable_end(place) for place in places}

    def written_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Ends with the records of open transactions."""
        self.broker.check_reachable()
        return {place: len(self.broker.log(place)) for place in places}

    def start_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Always 0: nothing expires here."""
        self.broker.check_reachable()
        return {place: 0 for place in places if self.broker.log(place) is not None}

    def committed(
        self, group: str, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """The group's next offsets; BusUnavailable while a transaction on them is open."""
        self.broker.check_reachable()
        with self.broker.lock:
            wanted = list(places)
            for writer in self.broker.writers.values():
                if writer.open is None:
                    continue
                if any((group, place) in writer.open.offsets for place in wanted):
                    raise BusUnavailable("an open transaction holds these offsets")
            return {place: self.broker.kept_offset(group, place) for place in wanted}

    def note(self, group: str, place: TopicPartition) -> str:
        """The text of the last committed note."""
        self.broker.check_reachable()
        with self.broker.lock:
            return self.broker.notes.get((group, place), "")

    def writer(self, *, prompt: bool = False) -> MemoryWriter:
        """A stream writer."""
        return MemoryWriter(self)

    def transactional_writer(self, transactional_id: str) -> MemoryTransactionalWriter:
        """Fence earlier writers of the id, end what they left open, and take their place."""
        return MemoryTransactionalWriter(self, transactional_id)

    def reader(self, name: str, *, patient: bool = False) -> MemoryReader:
        """A reader of committed records."""
        return MemoryReader(self)

    def join(self, group: str, topic: str) -> MemoryMember:
        """Join a group."""
        return MemoryMember(self, group, topic)
