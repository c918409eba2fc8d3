"""Over both buses: what a process read and did not write down, its successor reads again."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from gangline_bus.codec import encode
from gangline_bus.decider import DeciderLoop
from gangline_bus.kafka import KafkaBus
from gangline_bus.loop_settings import LoopSettings
from gangline_bus.memory import Broker
from gangline_bus.ports import Bus
from gangline_bus.topics import TopicNames, create_topics
from gangline_checkpoints.core.decide import CheckpointDecider
from gangline_checkpoints.core.model import Verify
from gangline_checkpoints.core.state import CheckpointState
from gangline_schemas.base import Event
from gangline_schemas.catalog import topic_of
from gangline_schemas.envelope import Envelope
from support.builders.checkpoints import JOB, allocated, part

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RANKS = 8
_numbers = itertools.count()


@pytest.fixture(params=["memory", "kafka"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[[], Bus]]:
    opened: list[KafkaBus] = []
    if request.param == "memory":
        broker = Broker()
        yield lambda: broker.connect(f"recall-{next(_numbers)}")
        return
    kafka = request.getfixturevalue("kafka")

    def new() -> Bus:
        opened.append(KafkaBus(kafka.bootstrap, client=f"recall-{next(_numbers)}"))
        return opened[-1]

    yield new
    for bus in opened:
        bus.close()


class Service:
    """The checkpoint service's loop, and what agents and the scheduler say to it."""

    def __init__(self, connect: Callable[[], Bus]) -> None:
        self._connect = connect
        self._names = TopicNames(f"recall-{uuid.uuid4().hex[:8]}.")
        create_topics(connect(), self._names)

    def say(self, *events: Event) -> None:
        writer = self._connect().writer()
        for event in events:
            envelope = Envelope(f"id-{next(_numbers)}", "/test", NOW, JOB, event)
            topic = self._names.name(topic_of(event.type))
            partition = 0 if topic == self._names.name(topic_of(allocated().type)) else None
            writer.send(encode(envelope, topic=topic, partition=partition))
        assert writer.flush(60) == 0

    def process(self) -> DeciderLoop[CheckpointState]:
        settings = LoopSettings(offsets_after_s=0.0)
        loop = DeciderLoop(
            self._connect(),
            CheckpointDecider(),
            lambda: NOW,
            names=self._names,
            settings=settings,
        )
        loop.take_over()
        return loop


def until(loop: DeciderLoop[CheckpointState], done: Callable[[], bool]) -> None:
    for _ in range(1000):
        loop.cycle(0.1)
        if done():
            return
    raise AssertionError("nothing more came")


def parts_of(loop: DeciderLoop[CheckpointState]) -> int:
    reported = loop.soft.of_jobs.get(JOB, {})
    return sum(len(step.shards) for step in reported.values())


def test_parts_that_two_processes_read_complete_a_checkpoint(connect: Callable[[], Bus]) -> None:
    service = Service(connect)
    service.say(part(0, 10, world_size=RANKS), part(0, 20, world_size=RANKS))
    first = service.process()
    until(first, lambda: parts_of(first) == 2)  # before their gang.allocated
    service.say(allocated(world_size=RANKS))
    service.say(*(part(rank, 20, world_size=RANKS) for rank in range(1, 5)))
    until(first, lambda: parts_of(first) == 6)
    first.cycle(0.0)  # the offsets of what led to nothing
    written = first.next_seq

    second = service.process()
    assert parts_of(second) == 6
    service.say(*(part(rank, 20, world_size=RANKS) for rank in range(3, RANKS)))
    until(second, lambda: bool(second.decider.effects(second.state, second.soft)))
    assert second.next_seq == written + 1, "one event says that all parts are there"

    third = service.process()
    [effect] = third.decider.effects(third.state, third.soft).values()
    assert isinstance(effect, Verify)
    assert [shard.rank for shard in effect.shards] == list(range(RANKS))
