"""A cycle is bounded by time: what was decided is committed, and the rest waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gangline_bus.codec import Received, encode
from gangline_bus.decider import DeciderLoop
from gangline_bus.decision import BaseDecider, BatchEnd, Decision, Input, Observed
from gangline_bus.loop_settings import LoopSettings
from gangline_bus.memory import Broker
from gangline_bus.ports import TopicPartition
from gangline_bus.topics import TopicNames, create_topics
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.quota import CancelAdmitted
from gangline_schemas.events.requests import JobCancelRequested

NAMES = TopicNames()
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SLOW_S = 0.3
INPUTS = 500
HANG_LIMIT_S = 12.0


@dataclass
class Slow(BaseDecider[None, None]):
    """Needs a while for each input, by a clock that only it moves."""

    name = "slow"
    log = Topic.QUOTA
    inputs: tuple[Topic, ...] = (Topic.REQUESTS,)
    now_s: float = 0.0
    slow_s: float = SLOW_S
    decided: list[str] = field(default_factory=list)
    followed: list[str] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)
    ends: int = 0
    follows = True

    def initial(self) -> None:
        return None

    def decide(self, state: None, soft: None, item: Input, now: datetime) -> Sequence[Decision]:
        self.ends += isinstance(item, BatchEnd)
        if not isinstance(item, Received):
            return []
        self.now_s += self.slow_s
        job_id = item.envelope.subject
        self.decided.append(job_id)
        if not item.together:
            self.alone.append(job_id)
        return [Decision(job_id, CancelAdmitted(job_id=job_id, user="u"))]

    def observe(self, state: None, soft: None, observed: Observed, now: datetime) -> None:
        if isinstance(observed, Received):
            self.followed.append(observed.envelope.subject)

    def evolve(self, state: None, decision: Decision, at: datetime) -> None:
        return None

    def check(self, state: None) -> list[str]:
        return []


def broker_with(count: int) -> Broker:
    broker = Broker()
    bus = broker.connect("users")
    create_topics(bus, NAMES)
    for number in range(count):
        job_id = f"j{number}"
        event = JobCancelRequested(job_id=job_id)
        envelope = Envelope(job_id, "/t", NOW, job_id, event)
        bus.writer().send(encode(envelope, topic=NAMES.name(Topic.REQUESTS)))
    return broker


def lead(broker: Broker, decider: Slow) -> DeciderLoop[None]:
    loop = DeciderLoop(
        broker.connect(f"process-{id(decider)}"),
        decider,
        lambda: NOW,
        stopwatch=lambda: decider.now_s,
        settings=LoopSettings(batch=INPUTS),
    )
    loop.take_over()
    return loop


def test_500_slow_inputs_never_take_longer_than_the_watchdog_lets_them() -> None:
    decider = Slow()
    loop = lead(broker_with(INPUTS), decider)
    longest = 0.0
    while len(decider.decided) < INPUTS:
        began = decider.now_s
        assert loop.cycle(0.0) > 0
        longest = max(longest, decider.now_s - began)
    assert longest <= loop.settings.cycle_s + SLOW_S < HANG_LIMIT_S
    assert loop.cycle(0.0) == 0


def test_quick_inputs_are_decided_in_one_cycle() -> None:
    decider = Slow(slow_s=0.0)
    assert lead(broker_with(INPUTS), decider).cycle(0.0) == INPUTS


def test_an_input_says_whether_others_were_read_with_it() -> None:
    decider = Slow(slow_s=0.0)
    loop = lead(broker_with(7), decider)
    assert loop.cycle(0.0) == 7
    assert (decider.alone, decider.ends) == ([], 1)
    alone = Slow(slow_s=0.0)
    lead(broker_with(1), alone).cycle(0.0)
    assert (alone.alone, alone.ends) == (["j0"], 0)


def test_a_decider_that_follows_gets_each_input_after_its_decisions() -> None:
    decider = Slow(slow_s=0.0)
    lead(broker_with(3), decider).cycle(0.0)
    assert decider.followed == decider.decided
    assert len(decider.followed) == 3


def test_a_successor_begins_with_the_first_input_that_was_left() -> None:
    broker, first, second = broker_with(INPUTS), Slow(), Slow(slow_s=0.0)
    lead(broker, first).cycle(0.0)
    assert 0 < len(first.decided) < INPUTS
    heir = lead(broker, second)
    while heir.cycle(0.0):
        pass
    assert len(first.decided) + len(second.decided) == INPUTS
    assert {*first.decided, *second.decided} == {f"j{number}" for number in range(INPUTS)}
    places = NAMES.places(broker.connect("check"), Topic.REQUESTS)
    ends = broker.connect("check").end_offsets(places)
    assert broker.connect("check").committed("gangline.slow.0.inputs", places) == ends
    assert all(isinstance(at, TopicPartition) for at in ends)
