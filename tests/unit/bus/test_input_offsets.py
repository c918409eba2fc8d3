"""Inputs are decided once, also when Kafka has forgotten how far a service had come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from gangline_bus.codec import Received, decode, encode
from gangline_bus.decider import DeciderLoop
from gangline_bus.decision import BaseDecider, Decision, Input
from gangline_bus.fold import LogBroken
from gangline_bus.input_offsets import HEADER, begin_at, named_inputs, with_inputs
from gangline_bus.memory import Broker
from gangline_bus.ports import OutRecord, TopicPartition
from gangline_bus.snapshot import SnapshotHeader, Snapshots
from gangline_bus.state_json import DataclassCodec
from gangline_bus.topics import TopicNames, create_topics
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.admin import TeamConfigureRequested
from gangline_schemas.events.quota import TeamConfigured
from gangline_schemas.events.workers import NodeLeaving
from support.builders.deciding import team

NAMES = TopicNames("here.")
WEEK = timedelta(days=8)


@dataclass
class Order:
    """The limits in the order in which they were decided."""

    limits: list[int] = field(default_factory=list)


class Echo(BaseDecider[Order, None]):
    """Decides each request of an even limit again whenever it comes, and each leaving node."""

    name = "echo"
    log = Topic.QUOTA

    def __init__(self, *inputs: Topic) -> None:
        self.inputs = inputs or (Topic.ADMIN,)

    def initial(self) -> Order:
        return Order()

    def decide(self, state: Order, soft: None, item: Input, now: datetime) -> Sequence[Decision]:
        if not isinstance(item, Received):
            return []
        data = item.envelope.data
        if isinstance(data, NodeLeaving):
            return [Decision("n", TeamConfigured(config=team("n", limit=9)))]
        if not isinstance(data, TeamConfigureRequested) or data.config.gpu_limit % 2:
            return []
        return [Decision(data.config.team, TeamConfigured(config=data.config))]

    def evolve(self, state: Order, decision: Decision, at: datetime) -> Order:
        assert isinstance(decision.event, TeamConfigured)
        state.limits = [*state.limits, decision.event.config.gpu_limit]
        return state

    def check(self, state: Order) -> list[str]:
        return []


class Kept(dict[int, bytes]):
    """Snapshots in memory."""

    def newest(self, service: str, shard: int) -> list[bytes]:
        return [self[seq] for seq in sorted(self, reverse=True)]

    def put(self, header: SnapshotHeader, data: bytes) -> None:
        self[header.next_seq] = data


class World:
    """A broker that forgets offsets as Kafka does, and time that passes."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
        self.broker = Broker(lambda: int(self.now.timestamp() * 1000))
        self.kept = Kept()
        create_topics(self.broker.connect("setup"), NAMES)

    def ask(self, *limits: int, key: str = "a") -> None:
        for limit in limits:
            request = TeamConfigureRequested(config=team(key, limit=limit))
            envelope = Envelope(f"{key}{limit}", "/t", self.now, key, request)
            topic = NAMES.name(Topic.ADMIN)
            self.broker.connect("user").writer().send(encode(envelope, topic=topic))

    def lead(self, *inputs: Topic, snapshots: bool = False) -> DeciderLoop[Order]:
        """A leader that has decided all that is there."""
        codec = DataclassCodec(Order)
        loop = DeciderLoop(
            self.broker.connect("leader"),
            Echo(*inputs),
            lambda: self.now,
            names=NAMES,
            snapshots=Snapshots(self.kept, codec, every=1) if snapshots else None,
        )
        loop.take_over()
        for _ in range(4):
            self.now += timedelta(seconds=2)
            loop.cycle(0.0)
        return loop

    def committed(self) -> set[int | None]:
        bus = self.broker.connect("look")
        places = NAMES.places(bus, Topic.ADMIN)
        return set(bus.committed(f"{NAMES.prefix}gangline.echo.0.inputs", places).values())


@pytest.fixture
def world() -> World:
    return World()


def test_offsets_of_quiet_inputs_are_committed_again(world: World) -> None:
    world.ask(2)
    loop = world.lead()
    until = world.now + 2 * WEEK
    while world.now < until:
        world.now += timedelta(minutes=50)
        loop.cycle(0.0)
    assert None not in world.committed()
    assert loop.next_seq == 1


@pytest.mark.parametrize("snapshots", [False, True])
def test_what_was_decided_before_a_long_absence_is_not_decided_again(
    world: World, snapshots: bool
) -> None:
    world.ask(2, 4, 3)
    leader = world.lead(snapshots=snapshots)
    world.ask(6, key="b")
    leader.cycle(0.0)
    assert leader.state.limits == [2, 4, 6]
    world.now += WEEK
    assert world.committed() == {None}
    world.ask(8)

    heir = world.lead(snapshots=snapshots)

    assert heir.state.limits == [2, 4, 6, 8]
    assert bool(world.kept) == snapshots


def test_an_input_that_is_added_later_is_read_from_its_start(world: World) -> None:
    world.ask(2)
    world.lead()
    world.now += WEEK
    leaving = NodeLeaving(node_id="n", incarnation="i", reason="spot")
    left = Envelope("l", "/t", world.now, "n", leaving)
    topic = NAMES.name(Topic.WORKERS)
    world.broker.connect("agent").writer().send(encode(left, topic=topic))
    assert world.lead(Topic.ADMIN, Topic.WORKERS).state.limits == [2, 9]


def test_a_log_that_names_no_inputs_does_not_begin_them_again(world: World) -> None:
    world.ask(2)
    world.lead()
    for log in world.broker.logs.values():
        for entry in log:
            headers = tuple(pair for pair in entry.record.headers if pair[0] != HEADER)
            entry.record = replace(entry.record, headers=headers)
    assert world.lead().state.limits == [2], "Kafka still knows the offsets"
    world.now += WEEK
    with pytest.raises(LogBroken, match=r"which inputs .* 'Offsets are lost' in docs/guides"):
        world.lead()


def test_an_input_that_lost_its_end_is_read_from_there() -> None:
    at = TopicPartition("t", 0)
    assert begin_at([at], {at: 7}, {at: 9}, {at: 0}, {at: 20}) == {at: 9}
    assert begin_at([at], {at: None}, {at: 9}, {at: 0}, {at: 5}) == {at: 5}
    assert begin_at([at], {at: None}, {at: None}, {at: 3}, {at: 5}) == {at: 3}


def test_hundreds_of_inputs_can_be_named() -> None:
    places = {TopicPartition("gangline.requests", part): 10**9 + part for part in range(900)}
    places[TopicPartition("gangline.workers", 3)] = 0
    event = TeamConfigured(config=team("a"))
    envelope = Envelope("i", "/t", datetime(2026, 1, 1, tzinfo=UTC), "a", event)
    record = with_inputs(encode(envelope, topic=Topic.QUOTA), places)
    assert named_inputs(record.headers) == places
    assert decode(_read(record)).data == event


def _read(record: OutRecord) -> object:
    from gangline_bus.ports import Record

    return Record(record.topic, 0, 0, record.key, record.value, record.headers, 0)
