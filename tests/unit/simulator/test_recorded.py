"""A log as a workload: under the policy that wrote it nothing differs, under another what does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from builders_deciding import spec
from builders_scheduler import Cluster, node
from gangline_bus.decision import Decision
from gangline_scheduler.decide import Scheduler
from gangline_scheduler.policy.config import Policy, Preemption
from gangline_scheduler.simulator.cluster import one_pool
from gangline_scheduler.simulator.compare import differences, figures, figures_table, pool_result
from gangline_scheduler.simulator.driver import Replay
from gangline_scheduler.simulator.history import History, Logged, progress_of, read_history
from gangline_scheduler.simulator.live_policies import live_policy
from gangline_scheduler.simulator.pace import Pace
from gangline_scheduler.simulator.recorded import Recording, read_recording
from gangline_scheduler.simulator.rerun import Rerun, tick_every_s
from gangline_scheduler.simulator.trace import TraceJob
from gangline_scheduler.state import State
from gangline_schemas.events.faults import FailureCause, NodeFailed
from gangline_schemas.events.quota import DrainAdmitted, TeamConfigured
from gangline_schemas.events.workers import ExitReason, NodeJoined
from gangline_schemas.job import TeamConfig

TICK_S = 20.0
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
    """What the trace simulator's scheduler wrote: 40 jobs of three teams on 32 GPUs."""
    jobs = [
        TraceJob(
            f"j{n}", 37.0 * n, 200.0 + 97 * (n * 7 % 11), 1 + n * 5 % 12, "abc"[n % 3],
            priority=30 + 10 * (n % 4),
        )
        for n in range(40)
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
    return Rerun(read_recording(log), Scheduler(policy=policy), every_s=TICK_S).run()


STILL = Preemption(preempt="off", reclaim="off", defragment="off")
POLICIES = {
    name: replace(live_policy(name), preemption=STILL)
    for name in ("fair", "fifo", "sjf+reservation=off", "drf+reservation=conservative")
}


@pytest.fixture(scope="module")
def logs() -> dict[str, list[Logged]]:
    return {name: simulated(policy) for name, policy in POLICIES.items()}


@pytest.mark.parametrize("name", POLICIES)
def test_the_policy_that_wrote_the_log_leads_to_the_recorded_starts(
    name: str, logs: dict[str, list[Logged]]
) -> None:
    assert furthest(starts(logs[name]), starts(again(logs[name], POLICIES[name]))) == 0.0


@pytest.mark.parametrize("name", ["fifo", "sjf+reservation=off", "drf+reservation=conservative"])
def test_another_policy_leads_to_what_it_does_with_the_same_jobs(
    name: str, logs: dict[str, list[Logged]]
) -> None:
    assert furthest(starts(logs["fair"]), starts(logs[name])) > 600.0
    # The log of the first policy ends with its last job, that of the other may end later.
    end = read_history(logs["fair"]).end
    wanted = {
        job_id: [at for at in times if at <= end] for job_id, times in starts(logs[name]).items()
    }
    assert furthest(wanted, starts(again(logs["fair"], POLICIES[name]))) == 0.0
