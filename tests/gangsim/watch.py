"""Reads every log as it grows, checks that it is its own witness, and shows it to the observers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline_bus.codec import UndecodableError
from gangline_bus.memory_broker import Status
from gangline_bus.ports import Record, TopicPartition
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.faults import GangFailed
from gangline_schemas.events.scheduling import GangStopping
from gangsim.engine import Violation
from gangsim.watch_jobs import JobsWatch
from gangsim.watch_rest import CheckpointsWatch, FaultsWatch

if TYPE_CHECKING:
    from gangsim.world import World

LOGS = (Topic.QUOTA, Topic.SCHEDULING, Topic.FAULTS, Topic.CHECKPOINTS)
# What comes long after its job was forgotten is recorded again, to delete its objects again.
LATE_TYPES = ("checkpoint.begun", "checkpoint.abandoned", "checkpoint.objects.deleted")


class Watch:
    """All observers. `look` after each step of a service."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.jobs = JobsWatch(world)
        self.faults = FaultsWatch(world)
        self.checkpoints = CheckpointsWatch(world)
        names = world.names
        self._logs = {names.name(topic): topic for topic in LOGS}
        self._workers = names.name(Topic.WORKERS)
        self._at: dict[TopicPartition, int] = {}
        self._next: dict[str, tuple[int, int]] = dict.fromkeys(self._logs, (0, 0))
        self._ids: dict[str, dict[str, None]] = {name: {} for name in self._logs}
        self.events = 0

    def look(self) -> None:
        """Take in what was committed since the last call. Raises Violation."""
        broker = self._world.broker
        touched = list(broker.touched)
        broker.touched.clear()
        if self._workers in touched:  # facts about shards come before their commits
            touched.remove(self._workers)
            touched.insert(0, self._workers)
        for topic in touched:
            if topic in self._logs or topic == self._workers:
                for partition in range(broker.counts[topic]):
                    self._read(TopicPartition(topic, partition))

    def _read(self, place: TopicPartition) -> None:
        broker = self._world.broker
        log, end = broker.log(place), broker.stable_end(place)
        at = self._at.get(place, 0)
        while at < end:
            entry = log[at]
            at += 1
            if entry.status is Status.COMMITTED:
                self._read_record(place.topic, entry.record)
        self._at[place] = at

    def _read_record(self, topic: str, record: Record) -> None:
        try:
            envelope = self._world.receive(record).envelope
        except UndecodableError as error:
            if topic != self._workers:
                raise Violation(f"{topic}@{record.offset} cannot be read") from error
            return  # a user's nonsense: the deciders refuse it
        self._take(topic, envelope)

    def _take(self, topic: str, envelope: Envelope) -> None:
        event: Event = envelope.data
        if topic != self._workers:
            self._check_position(topic, envelope)
            self.events += 1
            self._world.engine.count(event.type)
            if isinstance(event, GangStopping):
                self._world.engine.count(f"gang.stopping: {event.reason}")
            if isinstance(event, GangFailed):
                self._world.engine.count(f"gang.failed: {event.cause}")
            self._world.engine.note(topic[9:], envelope.subject, event.type, envelope.id)
        match self._logs.get(topic):
            case Topic.QUOTA | Topic.SCHEDULING:
                self.jobs.see(event)
            case Topic.FAULTS:
                self.faults.see(event)
            case _:
                self.checkpoints.see(event)

    def _check_position(self, topic: str, envelope: Envelope) -> None:
        """8, 11: no gap, no stale writer, no decision twice."""
        seq, epoch = self._next[topic]
        position = envelope.position
        if position is None or position.seq != seq or position.writer_epoch < epoch:
            raise Violation(f"{topic}: {position} where seq {seq}, epoch >= {epoch} must be")
        self._next[topic] = (seq + 1, position.writer_epoch)
        late = envelope.type in LATE_TYPES and self.jobs.ended(envelope.subject)
        if envelope.id in self._ids[topic] and not late:
            raise Violation(f"{topic}: {envelope.type} {envelope.id} was decided twice")
        self._ids[topic][envelope.id] = None
