"""Decision logs that a simulated scheduler writes, and reruns of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gangline_bus.decision import Decision
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.policy.config import Policy, Preemption
from gangline_scheduler.core.policy.configured import Limits
from gangline_scheduler.core.state import State
from gangline_schemas.events.faults import NodeFailed
from gangline_schemas.events.quota import (
    CancelAdmitted,
    DrainAdmitted,
    JobAdmitted,
    PriorityAdmitted,
    TeamConfigured,
)
from gangline_schemas.events.workers import NodeInfo, NodeJoined
from gangline_simulator.cluster import one_pool
from gangline_simulator.driver import Replay
from gangline_simulator.history import History, Logged, read_history
from gangline_simulator.live_policies import live_policy
from gangline_simulator.pace import Pace
from gangline_simulator.recorded import ACCEPTED, Failure, Fate, Need, Recording, read_recording
from gangline_simulator.rerun import Rerun
from gangline_simulator.trace import TraceJob
from support.builders.deciding import spec, team
from support.builders.scheduler import Cluster, node

TICK_S = 30.0
Starts = dict[str, list[datetime]]


class Writing(Scheduler):
    """A scheduler that keeps what it wrote."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy=policy)
        self.log: list[Logged] = []

    def evolve(self, state: State, decision: Decision, at: datetime) -> State:
        self.log.append(Logged(at, decision.event))
        return super().evolve(state, decision, at)


def simulated(policy: Policy) -> list[Logged]:
    """What the trace simulator's scheduler wrote: 30 jobs of three teams on 32 GPUs."""
    jobs = [
        TraceJob(
            f"j{n}", 37.0 * n, 200.0 + 97 * (n * 7 % 11), 1 + n * 5 % 12, "abc"[n % 3],
            priority=30 + 10 * (n % 4),
        )
        for n in range(30)
    ]  # fmt: skip
    writing = Writing(policy)
    Replay(one_pool(4).pools[0], jobs, writing, pace=Pace(TICK_S, only_changes=False)).run()
    return writing.log


def starts(log: Sequence[Logged]) -> Starts:
    found = read_history(log).jobs
    return {
        job_id: [attempt.allocated_at for attempt in job.attempts] for job_id, job in found.items()
    }


def furthest(one: Starts, other: Starts) -> float:
    """The largest difference of two starts, in seconds; fails when not the same ones happened."""
    assert {job_id: len(times) for job_id, times in one.items()} == {
        job_id: len(times) for job_id, times in other.items()
    }
    pairs = [pair for job_id in one for pair in zip(one[job_id], other[job_id], strict=True)]
    return max(abs((left - right).total_seconds()) for left, right in pairs)


def again(log: Sequence[Logged], policy: Policy) -> list[Logged]:
    decider = Scheduler(Limits(oldest_agents=ACCEPTED), policy)
    return Rerun(read_recording(log), decider, every_s=TICK_S).run()


STILL = Preemption(preempt="off", reclaim="off", defragment="off")
POLICIES = {
    name: replace(live_policy(name), preemption=STILL)
    for name in ("fair", "fifo", "sjf+reservation=off", "drf+reservation=conservative")
}


def eventful(policy: Policy) -> tuple[Recording, list[Logged]]:
    """A workload of all kinds, and the log of it under a policy.

    40 jobs of two teams on 4 nodes: some urgent, elastic, failing, cancelled; one node fails and
    comes back, another is drained for a time, a team's limits change.
    """
    begin = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)

    def after(seconds: float) -> datetime:
        return begin + timedelta(seconds=seconds)

    info = [node(f"n{n}", 8, rack=f"r{n % 2}") for n in range(4)]
    inputs: list[Logged] = [Logged(begin, NodeJoined(node=item)) for item in info]
    for name, guarantee in (("nlp", 20), ("cv", 12)):
        config = team(name, 32, guarantee)
        inputs.append(Logged(begin, TeamConfigured(config=config)))
    needs: dict[str, Need] = {}
    for n in range(40):
        gpus = 1 + n * 5 % 11
        resources = {"min_gpus": max(1, gpus // 2)} if n % 5 == 0 else {}
        wanted = spec(
            "nlp" if n % 3 else "cv",
            gpus,
            resources=resources,
            priority=5 if n % 11 == 7 else 50,
            preemptible=n % 2 == 0,
        )
        work_s = 500.0 + 311 * (n * 7 % 9)
        fates: dict[int, Fate] = {4: "fails", 9: "cancelled"}
        needs[f"j{n}"] = Need(
            wanted,
            work_s,
            fate=fates.get(n % 13, "succeeds"),
            failures=(Failure(work_s / 2, ("n0",), False),) if n % 7 == 3 else (),
            saves_at=tuple(100.0 * place for place in range(1, int(work_s / 100))),
            starts_s=(12.0, 7.0),
            stops_s=(21.0, 33.0),
            saves=n % 4 != 2,
        )
        admitted = JobAdmitted(job_id=f"j{n}", spec=wanted, user="ada", submitted_at=begin)
        inputs.append(Logged(after(61.0 * n), admitted))
    inputs += [
        Logged(after(905), NodeFailed(node_id="n1", incarnation="i1", reason="silent")),
        Logged(after(1300), PriorityAdmitted(job_id="j19", priority=1, user="ada")),
        Logged(after(1410), NodeJoined(node=replace_incarnation(info[1]))),
        Logged(after(2015), DrainAdmitted(node_id="n2", drain=True, user="ada")),
        Logged(after(2300), TeamConfigured(config=team("cv", 16, 12))),
        Logged(after(2500), CancelAdmitted(job_id="j39", user="ada")),
        Logged(after(4515), DrainAdmitted(node_id="n2", drain=False, user="ada")),
    ]
    inputs.sort(key=lambda item: item.at)
    work = Recording(History(begin, after(6 * 3600), {}, ()), tuple(inputs), needs)
    return work, Rerun(work, Scheduler(policy=policy), every_s=TICK_S, check=True).run()


def replace_incarnation(info: NodeInfo) -> NodeInfo:
    return info.model_copy(update={"incarnation": "i2"})


LIVELY = Policy(preemption=Preemption(min_runtime=timedelta(minutes=2)))


def written(cluster: Cluster) -> list[Logged]:
    return [Logged(at, decision.event) for decision, at in cluster.log]
