"""Reads the logs of the scheduler and the fault manager for what the agent acts on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import structlog

from gangline_bus.codec import Received, UndecodableError, receive
from gangline_bus.ports import Bus, BusError, Record, TopicPartition
from gangline_bus.topics import TopicNames
from gangline_schemas.catalog import Topic
from gangline_schemas.events.faults import CheckpointRequested, GangFailed, NodeFailed, NodeLeft
from gangline_schemas.events.scheduling import (
    CheckpointIntervalChanged,
    GangAllocated,
    GangReleased,
    GangStopping,
    ResumePointChanged,
)

from .images import prefetch

log = structlog.get_logger(__name__)

BUS_RETRY_S = 0.5
_READ = (
    GangAllocated,
    GangStopping,
    GangReleased,
    ResumePointChanged,
    CheckpointIntervalChanged,
    GangFailed,
    CheckpointRequested,
    NodeFailed,
    NodeLeft,
    *prefetch.READS,
)


def ends_of_logs(bus: Bus, names: TopicNames) -> dict[TopicPartition, int]:
    """The ends of both logs. Raises BusError."""
    topics = (Topic.SCHEDULING, Topic.FAULTS)
    return dict(bus.end_offsets([place for topic in topics for place in names.places(bus, topic)]))


class EventReader(threading.Thread):
    """Gives each event to `take`, in order, from `positions` on until `ended` is set.

    `positions` moves on once the events before it are given. A bus that is away is waited for.
    """

    def __init__(
        self,
        connect: Callable[[str], Bus],
        node_id: str,
        positions: Mapping[TopicPartition, int],
        take: Callable[[Received], None],
        ended: threading.Event,
    ) -> None:
        super().__init__(name="bus-reader", daemon=True)
        self.positions = positions
        self._connect = connect
        self._name = f"agent-{node_id}"
        self._take = take
        self._ended = ended

    def run(self) -> None:
        """Read; called by `start`, in the thread."""
        bus = self._connect("reader")
        while not self._ended.is_set():
            reader = bus.reader(self._name)
            reader.assign(self.positions)
            try:
                while not self._ended.is_set():
                    records = reader.poll(1000, 0.25)
                    for received in _acted_on(records):
                        self._take(received)
                    self.positions = {**self.positions, **reader.positions()}
                    if not records:
                        self._ended.wait(0.02)
            except BusError as error:
                log.warning("agent.reader_failed", error=str(error))
                self._ended.wait(BUS_RETRY_S)
            finally:
                reader.close()


def _acted_on(records: Sequence[Record]) -> list[Received]:
    """The records that the agent acts on. A failure comes before the release that follows from it.

    They stand in two logs, so the release may be read first.
    """
    found = []
    for record in records:
        try:
            received = receive(record)
        except UndecodableError as error:
            log.warning("agent.record_skipped", offset=record.offset, error=str(error))
            continue
        if isinstance(received.envelope.data, _READ):
            found.append(received)
    return sorted(found, key=lambda item: not isinstance(item.envelope.data, GangFailed))
