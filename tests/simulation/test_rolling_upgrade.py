"""Services of this version and of a simulated next one, together, through many orders of restart.

The next version has one more type, one more field and one more value of an enum. It writes them
once its feature is enabled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import permutations
from random import Random
from typing import Any, ClassVar, Literal

import pytest

from gangline_bus import codec
from gangline_bus.codec import encode
from gangline_bus.decider import DeciderLoop
from gangline_bus.decision import Decision, Input
from gangline_bus.fold import LogBroken
from gangline_bus.loop_settings import LoopSettings
from gangline_bus.memory import Broker
from gangline_bus.topics import TopicNames, create_topics
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.rollout import PARTS
from gangline_scheduler.core.state import State
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, event_types, topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.admin import TeamConfigureRequested
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.events.scheduling import JobQueued, JobWaiting
from gangline_schemas.events.workers import NodeJoined
from gangline_schemas.features import Feature
from gangline_schemas.job import JobSpec
from gangline_service.announcing import announcement
from golden.scenario import Scenario
from support.builders.deciding import team
from support.deciders import DECIDERS

THIS, NEXT = "0.1.0", "0.2.0"
PAUSE = Feature("pause", since=NEXT)


class GangPaused(Event):
    type: ClassVar[str] = "gang.paused"
    job_id: str


class NextJobQueued(JobQueued):
    note: str = "new"


class NextJobWaiting(JobWaiting):
    code: Literal["paused"] = "paused"  # type: ignore[assignment]


class ReadJobWaiting(JobWaiting):
    """As the next version reads it: with the old values and the new one."""

    code: str  # type: ignore[assignment]


NEW_TYPES = {
    **event_types(),
    "gang.paused": GangPaused,
    "job.queued": NextJobQueued,
    "job.waiting": ReadJobWaiting,
}


class NextScheduler(Scheduler):
    """Writes what is new for each job that is queued, once all know it."""

    def __init__(self) -> None:
        super().__init__(features=(PAUSE,))

    def decide(self, state: State, soft: None, item: Input, now: datetime) -> Sequence[Decision]:
        decided = list(super().decide(state, soft, item, now))
        if PAUSE.name not in state.features:
            return decided
        found: list[Decision] = []
        for decision in decided:
            if type(decision.event) is JobQueued:
                job_id = decision.event.job_id
                found.append(Decision(job_id, NextJobQueued(**dict(decision.event))))
                found.append(Decision(job_id, GangPaused(job_id=job_id)))
                waiting = NextJobWaiting(job_id=job_id, code="paused", message="paused")
                found.append(Decision(job_id, waiting))
            else:
                found.append(decision)
        return found

    def evolve(self, state: State, decision: Decision, at: datetime) -> State:
        if isinstance(decision.event, GangPaused):
            return state
        return super().evolve(state, decision, at)


MAKE: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    **{name: (known.make, known.make) for name, known in DECIDERS.items()},
    "scheduler": (Scheduler, NextScheduler),
}


LEADER = "leader"
OTHERS = (("scheduler", "standby"), ("gateway", "gateway-1"), ("tracker", "tracker-1"))
"""Who does not lead, and reads what the leaders write or may take over from one."""


@contextmanager
def version(release: str) -> Iterator[None]:
    """What a process of this release knows of the schemas."""
    with pytest.MonkeyPatch.context() as patch:
        if release == NEXT:
            patch.setattr(codec, "event_types", lambda: NEW_TYPES)
            patch.setattr(
                codec, "topic_of", lambda t: Topic.SCHEDULING if t == "gang.paused" else topic_of(t)
            )
        yield


class World:
    """One cluster: users that submit, nodes that join, all deciders, and who else announces."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.now = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
        self.user = self.broker.connect("user")
        create_topics(self.user, TopicNames())
        self.loops: dict[str, tuple[DeciderLoop[Any], str]] = {}
        self.jobs: list[str] = []
        self._node = Scenario(0)
        self._say(Topic.ADMIN, "nlp", TeamConfigureRequested(config=team("nlp", limit=64)))
        for part in MAKE:
            self.start(part, THIS)
        for part, instance in OTHERS:
            self.announce(part, instance, THIS)
        self._cycle()
        self.live()

    def start(self, part: str, release: str) -> None:
        """A process of this release takes over from the one that leads."""
        self.announce(part, LEADER, release)
        if part in self.loops:
            self.loops[part][0].close()
        decider = MAKE[part][release == NEXT]()
        loop = DeciderLoop(
            self.broker.connect(f"{part}-{self.now}"),
            decider,
            lambda: self.now,
            settings=LoopSettings(release=release),
        )
        with version(release):
            loop.take_over()
        self.loops[part] = (loop, release)

    def announce(self, part: str, instance: str, release: str | None) -> None:
        """A process of this release begins, as every one does; None: it stops."""
        record = announcement(TopicNames(), part, instance, release, self.now)
        self.user.writer().send(record)

    def upgrade_others(self) -> None:
        """All that do not lead run the next release."""
        for part, instance in OTHERS:
            self.announce(part, instance, NEXT)

    def live(self) -> None:
        """A job is submitted, a node joins or has failed, and all decide about it."""
        job_id = f"job-{len(self.jobs)}"
        spec = JobSpec(name="a", team="nlp", run="true", resources={"gpus": 1})  # type: ignore[arg-type]
        self._say(Topic.REQUESTS, job_id, JobSubmitted(job_id=job_id, spec=spec, user="ada"))
        self.jobs.append(job_id)
        index = len(self.jobs) % 12
        self._say(Topic.WORKERS, f"node-{index}", NodeJoined(node=self._node._node(index)))
        for _ in range(6):
            self._cycle()

    def _cycle(self) -> None:
        self.now += timedelta(seconds=20)
        for loop, release in self.loops.values():
            with version(release):
                loop.cycle(0.0)

    def enabled(self) -> bool:
        return PAUSE.name in self.loops["scheduler"][0].state.features

    def check(self) -> None:
        """Nothing is lost: each job was queued once, and is known to who decides about it."""
        quota, scheduler = (self.loops[part][0].state for part in ("quota", "scheduler"))
        assert sorted([*quota.active, *quota.ended]) == sorted(self.jobs)
        assert sorted([*scheduler.jobs, *scheduler.ended]) == sorted(self.jobs)
        records = [dict(record.headers) for record in self.broker.dump(Topic.SCHEDULING)]
        queued = [h["ce_subject"].decode() for h in records if h["ce_type"] == b"job.queued"]
        assert queued == self.jobs
        for topic in Topic:
            assert self.broker.dump(topic.dlq) == []

    def new_on_the_wire(self) -> set[str]:
        values = [record.value for record in self.broker.dump(Topic.SCHEDULING)]
        headers = [dict(record.headers) for record in self.broker.dump(Topic.SCHEDULING)]
        found = {"type"} if any(h["ce_type"] == b"gang.paused" for h in headers) else set()
        found |= {"field"} if any(b'"note":"new"' in value for value in values) else set()
        return found | (
            {"value"} if any(b'"code":"paused"' in value for value in values) else set()
        )

    def _say(self, topic: Topic, subject: str, event: Event) -> None:
        envelope = Envelope(f"{topic}{subject}{len(self.jobs)}", "/user", self.now, subject, event)
        self.user.writer().send(encode(envelope, topic=topic))


DECIDING = tuple(MAKE)
ROTATIONS = [
    parts[at:] + parts[:at] for parts in (DECIDING, DECIDING[::-1]) for at in range(len(DECIDING))
]
"""Each decider comes at each place, and each pair in both orders."""
DRAWN = int(os.environ.get("GANGLINE_UPGRADE_ORDERS", "0"))
SEED = int(os.environ.get("GANGLINE_UPGRADE_SEED", "0"))
ORDERS = [
    *ROTATIONS,
    *(tuple(Random(SEED + n).sample(DECIDING, k=len(DECIDING))) for n in range(DRAWN)),
]
"""The rotations, and in `make soak` drawn orders; there are 40,320 of eight deciders."""
OTHER_ORDERS = list(permutations(OTHERS))
EVERY = 1 if DRAWN else 2
"""Two tests take each second order in `make test`, so still each one of `OTHER_ORDERS`."""


def in_orders(every: int) -> pytest.MarkDecorator:
    taken = ORDERS[::every]
    names = [",".join(order) for order in taken]
    return pytest.mark.parametrize(("number", "order"), list(enumerate(taken)), ids=names)


@in_orders(1)
def test_an_upgrade_in_any_order_ends_nobody_and_loses_nothing(
    number: int, order: tuple[str, ...]
) -> None:
    world = World()
    world.upgrade_others()
    for part in order:
        assert not world.enabled(), "not all parts have announced the next release"
        assert world.new_on_the_wire() == set()
        world.start(part, NEXT)
        world.live()
        world.check()
    assert world.enabled()
    world.live()
    world.check()
    assert world.new_on_the_wire() == {"type", "field", "value"}
    for part in order:
        world.start(part, NEXT)
    world.live()
    world.check()


@in_orders(EVERY)
def test_a_feature_waits_for_standbys_gateways_and_trackers(
    number: int, order: tuple[str, ...]
) -> None:
    last = OTHER_ORDERS[number % len(OTHER_ORDERS)]
    world = World()
    for part in order:
        world.start(part, NEXT)
        world.live()
    for part, instance in last:
        assert not world.enabled(), f"{part} {instance} has not announced the next release"
        assert world.new_on_the_wire() == set()
        world.announce(part, instance, NEXT)
        world.live()
    assert world.enabled()
    world.live()
    assert world.new_on_the_wire() == {"type", "field", "value"}
    world.start("scheduler", NEXT)  # the standby takes over
    world.live()
    world.check()


def test_a_gateway_that_stops_is_waited_for_no_more() -> None:
    world = World()
    for part in PARTS:
        world.start(part, NEXT)
    for part, instance in OTHERS[:2]:
        world.announce(part, instance, NEXT)
    world.live()
    assert not world.enabled()
    world.announce(*OTHERS[2], None)
    world.live()
    assert world.enabled()
    world.start("scheduler", NEXT)
    world.live()
    world.check()


def test_a_scheduler_that_was_away_for_a_day_does_not_forget_who_announced_meanwhile() -> None:
    world = World()
    away = world.loops.pop("scheduler")[0]
    away.close()
    for part in PARTS:
        if part != "scheduler":
            world.start(part, NEXT)
    for _ in range(24):
        world.now += timedelta(hours=1)
        for part in PARTS:
            world.announce(part, LEADER, NEXT)
        for part, instance in OTHERS:
            world.announce(part, instance, THIS)
    world.start("scheduler", NEXT)
    world.live()
    assert not world.enabled()
    world.upgrade_others()
    world.live()
    assert world.enabled()


@in_orders(EVERY)
def test_a_rollback_before_the_last_part_ends_nobody_and_loses_nothing(
    number: int, order: tuple[str, ...]
) -> None:
    upgraded = 1 + number % (len(order) - 1)
    world = World()
    world.upgrade_others()
    for part in order[:upgraded]:
        world.start(part, NEXT)
        world.live()
    for part in order[:upgraded]:
        world.start(part, THIS)
        world.live()
        world.check()
    assert not world.enabled()
    assert world.new_on_the_wire() == set()


def test_after_the_feature_is_enabled_readers_can_go_back_and_the_writer_says_that_it_cannot() -> (
    None
):
    world = World()
    world.upgrade_others()
    for part in MAKE:
        world.start(part, NEXT)
    for _ in range(3):
        world.live()
    assert world.new_on_the_wire() == {"type", "field", "value"}
    for part in PARTS:
        if part != "scheduler":
            world.start(part, THIS)
            world.live()
            world.check()
    with pytest.raises(LogBroken, match=f"A later version wrote it: start {NEXT} again"):
        world.start("scheduler", THIS)
    world.start("scheduler", NEXT)
    world.live()
    world.check()
