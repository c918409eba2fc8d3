"""Whatever comes, in whatever order: no two attempts at once, nothing beyond the lease."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_bus.codec import Received
from gangline_bus.decision import Tick
from gangline_schemas.base import Event
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.faults import FailureCause
from gangline_schemas.events.scheduling import GangAllocated, GangStopping, StopReason
from gangline_schemas.events.workers import NodeJoined, WorkerExited
from gangline_worker.agent.decide.core import AgentCore
from gangline_worker.agent.decide.effects import (
    CloseGang,
    Effect,
    KillRank,
    OpenStore,
    Prepare,
    Publish,
    SendHeartbeat,
    Spawn,
    TakeStacks,
)
from gangline_worker.agent.decide.inputs import (
    HeartbeatAcked,
    Input,
    Leave,
    Prepared,
    PrepareFailed,
    RankExited,
    RankSpawned,
    StacksTaken,
    StoreFailed,
    StoreOpened,
)
from gangline_worker.agent.decide.keys import GangKey, Moment, RankKey
from gangline_worker.agent.decide.membership import AgentLimits
from support.builders.agent_core import START, allocation, node_info, released, reread
from support.builders.gangs import gang_failed

STORIES = int(os.environ.get("GANGLINE_AGENT_STORIES", "70"))
"""`make soak` plays more."""
LIMITS = AgentLimits(1.0, lease_s=5.0)
LEASE_S = LIMITS.lease_s
TICK_S = 0.5
NODE = node_info(gpus=4)


@dataclass
class World:
    """The node around the core: processes that live until they are killed or end."""

    core: AgentCore = field(default_factory=lambda: AgentCore(NODE, LIMITS))
    time_s: float = 50.0
    offset: int = 0
    bus: bool = True
    answering: bool = True
    running: dict[RankKey, str] = field(default_factory=dict)  # the incarnation it began in
    dying: set[RankKey] = field(default_factory=set)
    attempts: dict[str, int] = field(default_factory=dict)
    gpus: dict[RankKey, int] = field(default_factory=dict)
    allocated: dict[GangKey, GangAllocated] = field(default_factory=dict)
    asked: list[Prepare | OpenStore | TakeStacks] = field(default_factory=list)
    exits: list[tuple[str, int, int, str]] = field(default_factory=list)
    acked_s: float = 50.0

    def at(self) -> Moment:
        return Moment(self.time_s, START + timedelta(seconds=self.time_s))

    def start(self) -> None:
        self.act(self.core.start(self.at()))

    def restart_in_place(self) -> None:
        """Another program continues in the agent's process; what was asked for is not answered."""
        state = reread(self.core.state)
        self.asked.clear()
        self.core = AgentCore(NODE, LIMITS)
        self.act(self.core.adopt(state))

    def give(self, item: Input) -> None:
        self.act(self.core.handle(item, self.at()))

    def event(self, event: Event) -> None:
        self.offset += 1
        envelope = Envelope(
            id=str(self.offset), source="/t", time=self.at().utc, subject="s", data=event
        )
        self.give(Received(envelope, "t", 0, self.offset))

    def act(self, effects: list[Effect]) -> None:
        follows: list[Input] = []
        for effect in effects:
            match effect:
                case Spawn():
                    self.spawn(effect)
                    follows.append(RankSpawned(effect.rank, 1))
                case KillRank():
                    self.dying.add(effect.rank)  # it is gone at the next tick only
                case Prepare() | OpenStore() | TakeStacks():
                    self.asked.append(effect)
                case SendHeartbeat():
                    if self.bus:
                        self.acked_s = self.time_s
                        follows.append(HeartbeatAcked(effect.heartbeat.incarnation, self.time_s))
                case Publish(event=NodeJoined()):
                    assert not self.running, "the node joined with ranks of an earlier life"
                case Publish(event=WorkerExited() as exited):
                    key = (exited.job_id, exited.attempt, exited.rank, exited.incarnation)
                    assert key not in self.exits, "an exit was reported twice"
                    self.exits.append(key)
                case CloseGang():
                    assert not any(rank.gang == effect.gang for rank in self.running)
                case _:
                    pass
        for item in follows:
            self.give(item)

    def spawn(self, effect: Spawn) -> None:
        gang = effect.rank.gang
        named = self.allocated[gang].nodes[0].incarnation
        assert named == self.core.incarnation, "it was meant for an earlier life"
        for other in self.running:
            assert other.gang.job_id != gang.job_id or other.gang == gang, "two attempts at once"
        gpu = self.allocated[gang].nodes[0].gpus[effect.local_rank]
        assert gpu not in [self.gpus[rank] for rank in self.running], "a GPU has two owners"
        self.running[effect.rank] = self.core.incarnation
        self.gpus[effect.rank] = gpu

    def allocate(self, job_id: str, ahead: int, gpus: tuple[int, ...], *, stale: bool) -> None:
        attempt = max(1, self.attempts.get(job_id, 0) + ahead)
        self.attempts[job_id] = max(attempt, self.attempts.get(job_id, 0))
        event = allocation(
            attempt,
            job_id=job_id,
            incarnation="earlier" if stale else self.core.incarnation,
            gpus=gpus,
            grace_s=3.0,
        )
        self.allocated.setdefault(GangKey(job_id, attempt), event)
        self.event(self.allocated[GangKey(job_id, attempt)])

    def pass_time(self, ticks: int) -> None:
        for _ in range(ticks):
            self.time_s += TICK_S
            doomed = sorted(self.dying & self.running.keys())
            self.dying.clear()
            self.give(Tick())
            while self.asked and self.answering:
                self.answer(0, well=True)
            for rank in doomed:
                self.end(rank, RankExited(rank, signal=9))
            self.check()

    def end(self, rank: RankKey, exited: RankExited) -> None:
        del self.running[rank]
        self.give(exited)

    def answer(self, index: int, *, well: bool) -> None:
        asked = self.asked.pop(index % len(self.asked))
        match asked:
            case Prepare():
                failed = PrepareFailed(asked.gang, user_fault=False, message="m")
                self.give(Prepared(asked.gang) if well else failed)
            case OpenStore():
                self.give(StoreOpened(asked.gang) if well else StoreFailed(asked.gang, "m"))
            case TakeStacks():
                self.give(StacksTaken(asked.gang, ()))

    def check(self) -> None:
        if self.running:
            assert self.time_s - self.acked_s <= LEASE_S + 3 * TICK_S, "it ran on beyond its lease"
        if self.core.member.standing.joined:
            assert set(self.running.values()) <= {self.core.incarnation}


JOBS = st.sampled_from(["a", "b"])
GPUS = st.sampled_from([(0,), (0, 1), (1, 2), (2, 3)])
STEPS = st.one_of(
    st.tuples(
        st.just("allocate"), JOBS, st.sampled_from([1, 1, 1, 2, 0, -1]), GPUS, st.just(False)
    ),
    st.tuples(st.just("allocate"), JOBS, st.just(1), GPUS, st.booleans()),
    st.tuples(st.just("time"), st.integers(1, 3)),
    st.tuples(st.just("time"), st.integers(1, 14)),
    st.tuples(st.just("release"), JOBS),
    st.tuples(st.just("hang"), JOBS),
    st.tuples(st.just("preempt"), JOBS, st.floats(0, 5)),
    st.tuples(st.just("answer"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("answering"), st.booleans()),
    st.tuples(st.just("end"), st.integers(0, 5), st.sampled_from([0, 1])),
    st.tuples(st.just("bus"), st.booleans()),
    st.tuples(st.just("begin anew")),
)


def play(world: World, step: tuple) -> None:
    match step:
        case ("allocate", job_id, ahead, gpus, stale):
            world.allocate(job_id, ahead, gpus, stale=stale)
        case ("release", job_id) if job_id in world.attempts:
            world.event(released(world.attempts[job_id], job_id=job_id))
        case ("hang", job_id) if job_id in world.attempts:
            world.event(gang_failed(job_id, world.attempts[job_id], START, FailureCause.HANG))
        case ("preempt", job_id, after_s) if job_id in world.attempts:
            world.event(
                GangStopping(
                    job_id=job_id,
                    attempt=world.attempts[job_id],
                    reason=StopReason.PREEMPTED,
                    deadline=world.at().utc + timedelta(seconds=after_s),
                )
            )
        case ("answer", index, well) if world.asked:
            world.answer(index, well=well)
        case ("answering", answering):
            world.answering = answering
        case ("end", index, code) if world.running:
            rank = sorted(world.running)[index % len(world.running)]
            world.end(rank, RankExited(rank, code=code))
        case ("bus", works):
            world.bus = works
        case ("begin anew",):
            world.restart_in_place()
        case ("time", ticks):
            world.pass_time(ticks)


@given(st.lists(STEPS, min_size=10, max_size=40))
@settings(max_examples=STORIES, deadline=None)
def test_whatever_comes_the_agent_keeps_its_promises(steps: list[tuple]):
    world = World()
    world.start()

    for step in steps:
        play(world, step)
        world.check()

    # After healing everything can be released: the agent leaves with nothing left.
    world.bus = world.answering = True
    world.pass_time(20)
    assert world.core.member.standing.joined
    world.give(Leave("stop", 1.0))
    world.pass_time(10)
    assert world.core.gone
    assert not world.running
