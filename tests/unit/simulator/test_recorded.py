"""A log as a workload: under the policy that wrote it nothing differs, under another what does."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gangline_bus.decision import Decision
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.policy.config import Policy, Preemption
from gangline_scheduler.core.policy.configured import Limits
from gangline_scheduler.core.state import State
from gangline_schemas.events.faults import FailureCause, NodeFailed, NodeRecovered
from gangline_schemas.events.quota import (
    CancelAdmitted,
    DrainAdmitted,
    JobAdmitted,
    PriorityAdmitted,
    TeamConfigured,
)
from gangline_schemas.events.scheduling import ReleaseReason, StopReason
from gangline_schemas.events.workers import ExitReason, NodeInfo, NodeJoined
from gangline_simulator.cluster import one_pool
from gangline_simulator.compare import figures, figures_table, pool_result
from gangline_simulator.driver import Replay
from gangline_simulator.history import History, Logged, read_history
from gangline_simulator.live_policies import live_policy
from gangline_simulator.pace import Pace
from gangline_simulator.picture import curves
from gangline_simulator.recorded import (
    ACCEPTED,
    Failure,
    Fate,
    Need,
    Recording,
    read_recording,
)
from gangline_simulator.rerun import Rerun, tick_every_s
from gangline_simulator.trace import TraceJob
from gangline_simulator.versus import NoJobsError, versus
from golden.scenario import Scenario
from support.builders.deciding import START, spec, team
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


@pytest.fixture(scope="module")
def lived() -> tuple[Recording, list[Logged]]:
    return eventful(LIVELY)


def test_with_failures_stops_and_nodes_that_go_it_is_as_recorded(
    lived: tuple[Recording, list[Logged]],
) -> None:
    jobs = read_history(lived[1]).jobs.values()
    reasons = {attempt.reason for job in jobs for attempt in job.attempts}
    stops = {attempt.stop for job in jobs for attempt in job.attempts}
    assert reasons == set(ReleaseReason)
    assert stops >= {StopReason.PREEMPTED, StopReason.CANCELLED, StopReason.DRAIN}
    assert any(attempt.lost for job in jobs for attempt in job.attempts)
    assert furthest(starts(lived[1]), starts(again(lived[1], LIVELY))) <= TICK_S


def test_what_was_needed_is_read_back(lived: tuple[Recording, list[Logged]]) -> None:
    work, log = lived
    found = read_recording(log).needs
    for job_id, need in work.needs.items():
        if job_id == "j39":
            continue
        assert found[job_id].fate == need.fate
        assert found[job_id].work_s == pytest.approx(need.work_s, abs=1e-3), job_id


@pytest.mark.parametrize("name", ["fair+preempt=off", "fifo+reclaim=off"])
def test_another_policy_meets_the_same_failures_nodes_and_cancels(
    name: str, lived: tuple[Recording, list[Logged]]
) -> None:
    """Policies that stop few: how long a job takes to stop is known only if it was stopped."""
    work, log = lived
    end = read_history(log).end
    truth = Rerun(work, Scheduler(policy=live_policy(name)), every_s=TICK_S).run()
    wanted = starts([entry for entry in truth if entry.at <= end])
    assert furthest(wanted, starts(again(log, live_policy(name)))) <= TICK_S
    assert starts(log) != wanted


def written(cluster: Cluster) -> list[Logged]:
    return [Logged(at, decision.event) for decision, at in cluster.log]


def stopped_once(*, saved: bool) -> Cluster:
    """300 s on a node that leaves, 40 s to stop, then 500 s on another."""
    cluster = Cluster(node("n1", 1), node("n2", 1))
    cluster.run("a")
    place = cluster.job("a").gang
    assert place is not None
    cluster.tick(300)
    cluster.leave(place.nodes[0].node_id)
    cluster.tick(40)
    if saved:
        cluster.commit("a", 7)
    cluster.exit("a", ExitReason.STOPPED)
    cluster.start("a")
    cluster.tick(500)
    cluster.exit("a")
    return cluster


@pytest.mark.parametrize(("saved", "work_s"), [(True, 800.0), (False, 500.0)])
def test_a_stop_loses_what_was_not_saved(saved: bool, work_s: float) -> None:
    log = written(stopped_once(saved=saved))
    need = read_recording(log).needs["a"]
    assert (need.work_s, need.stops_s, need.saves) == (work_s, (40.0,), saved)
    found = figures({"recorded": read_history(log)}, ["a"])[0]
    lost_s = 40.0 if saved else 340.0
    assert (found.preemptions, found.gpu_hours_lost) == (1, pytest.approx(lost_s / 3600))
    assert (found.jct_avg_s, found.queue_avg_s) == (840.0, 0.0)
    assert found.utilization == pytest.approx(840 / (2 * 300 + 540))


def test_a_gang_that_was_stopped_before_its_ranks_started_has_not_started_by_then() -> None:
    cluster = Cluster(node("n1", 1), node("n2", 1))
    cluster.submit("a")
    cluster.tick(0)
    place = cluster.job("a").gang
    assert place is not None
    cluster.tick(20)
    cluster.leave(place.nodes[0].node_id)
    cluster.tick(1)
    cluster.tick(5)
    cluster.start("a")
    cluster.tick(500)
    cluster.exit("a")
    log = written(cluster)
    first, second = read_recording(log).needs["a"].starts_s
    assert first > 20.0 > second
    assert starts(again(log, Policy())) == starts(log)


@pytest.mark.parametrize("upgraded", ["the agent", "the scheduler"])
def test_an_outdated_node_takes_no_gangs_in_the_rerun_either(upgraded: str) -> None:
    """Until its agent is upgraded, whatever is drained meanwhile; its gangs continue."""
    cluster = Cluster(node("n1", 2))
    cluster.run("a")
    if upgraded == "the scheduler":
        cluster.decider = Scheduler(Limits(oldest_agents="0.3.0"))
        cluster.tick(10)
    else:
        cluster.decider = Scheduler(Limits(oldest_agents="0.3.0"))
        cluster.give(NodeFailed(node_id="n1", incarnation="i1", reason="silent"))
        cluster.fail("a", cause=FailureCause.NODE)
        cluster.give(NodeRecovered(node_id="n1", incarnation="i1", was="failed"))
    cluster.submit("b")
    cluster.tick(100)
    for on in (True, False):
        cluster.give(DrainAdmitted(node_id="n1", drain=on, move_jobs=False, user="ada"))
        cluster.tick(100)
    cluster.give(NodeJoined(node=node("n1", 2, release="0.3.0")))
    for job_id in ("a", "b"):
        cluster.start(job_id)
        cluster.tick(300)
        cluster.exit(job_id)
    log = written(cluster)
    late = cluster.log[0][1] + timedelta(seconds=300)
    assert min(starts(log)["b"]) >= late
    assert starts(again(log, Policy())) == starts(log)


def failing(first_s: float, second_s: float, *, lose_node: bool = False) -> Cluster:
    """An attempt that fails after a checkpoint at 100 s, and one that succeeds."""
    cluster = Cluster(node("n1", 1), node("n2", 1))
    cluster.run("a")
    gang = cluster.job("a").gang
    assert gang is not None
    cluster.tick(100)
    if not lose_node:
        cluster.tick(first_s - 100)
    else:
        cluster.commit("a", 3)
        cluster.tick(first_s - 100)
        at = gang.nodes[0].node_id
        cluster.give(NodeFailed(node_id=at, incarnation="i1", reason="silent"))
    cluster.fail("a", cause=FailureCause.NODE if lose_node else FailureCause.PROCESS)
    cluster.start("a")
    cluster.tick(second_s)
    cluster.exit("a")
    return cluster


def test_a_failure_belongs_to_the_job_or_to_the_node_that_was_gone() -> None:
    of_the_job = read_recording(written(failing(250, 600))).needs["a"]
    assert of_the_job.failures == (Failure(250.0, (), False),)
    assert of_the_job.work_s == 600.0
    of_the_node = read_recording(written(failing(250, 600, lose_node=True))).needs["a"]
    assert of_the_node.failures == ()
    assert (of_the_node.work_s, of_the_node.saves_at) == (700.0, (100.0,))


def test_who_needs_less_after_a_failure_than_before_keeps_its_progress_itself() -> None:
    need = read_recording(written(failing(900, 200))).needs["a"]
    assert (need.work_s, need.keeps_itself) == (1100.0, True)


def test_jobs_of_which_the_log_does_not_hold_the_need() -> None:
    cluster = Cluster(node("n1", 1))
    cluster.run("limited", max_runtime_hours=0.1)
    cluster.submit("given-up")
    cluster.submit("says-nothing")
    cluster.tick(1)
    cluster.submit("says", expected_runtime_hours=0.5)
    cluster.submit("starts-from-nothing", resume_from="nobody")
    cluster.tick(59)
    cluster.cancel("given-up")
    cluster.tick(301)  # one second above 0.1 h
    cluster.tick(10)
    cluster.exit("limited", ExitReason.STOPPED)
    cluster.start("says-nothing")
    cluster.tick(100)
    recording = read_recording(written(cluster))
    assert {job_id: need.work_s for job_id, need in recording.needs.items()} == {
        "limited": math.inf,
        "given-up": math.inf,
        "says-nothing": math.inf,
        "says": 1800.0,
    }
    asked = [entry for entry in recording.inputs if isinstance(entry.event, CancelAdmitted)]
    assert [(entry.event.job_id, entry.at) for entry in asked] == [  # type: ignore[attr-defined]
        ("given-up", recording.start + timedelta(seconds=60))
    ]
    found = versus(written(cluster), ["fair"])
    assert [(job.job_id, job.allocated_gpus) for job in found.unended] == [
        ("says-nothing", 1),
        ("says", 0),
    ]
    assert found.differences["fair"] == ()
    assert [column.ended for column in found.columns] == [2, 2]


def test_a_run_that_validated_a_checkpoint_is_one_among_others() -> None:
    cluster = Cluster(node("n1", 1))
    cluster.run("a")
    cluster.commit("a", 10)
    cluster.tick(100)
    cluster.exit("a")
    cluster.run("b", resume_from="a", validates=True, checkpoint={"resume": "10"})
    cluster.tick(50)
    cluster.exit("b")
    recording = read_recording(written(cluster))
    assert {job_id: need.work_s for job_id, need in recording.needs.items()} == {
        "a": 100.0,
        "b": 50.0,
    }
    assert versus(written(cluster), ["fair"]).differences["fair"] == ()


def test_a_restore_is_work_that_was_wanted_again() -> None:
    cluster = Cluster(node("n1", 1))
    cluster.run("a")
    cluster.tick(100)
    cluster.commit("a", 1)
    cluster.tick(100)
    cluster.restore("a", 1)
    cluster.tick(10)
    cluster.exit("a", ExitReason.STOPPED)
    cluster.start("a")
    cluster.tick(300)
    cluster.exit("a")
    need = read_recording(written(cluster)).needs["a"]
    assert (need.work_s, need.failures) == (500.0, ())


def test_the_figures_are_of_jobs_since_a_time_and_the_cut_is_the_end() -> None:
    cluster = Cluster(node("n1", 1))
    cluster.run("early")
    cluster.tick(100)
    since = cluster.now
    cluster.submit("late")
    cluster.tick(100)
    cluster.exit("early")
    cluster.start("late")
    found = versus(written(cluster), ["fifo"], since=since, end=since + timedelta(seconds=400))
    assert [column.jobs for column in found.columns] == [1, 1]
    assert [column.queue_avg_s for column in found.columns] == [100.0, 100.0]
    assert found.columns[0].jct_avg_s is None
    with pytest.raises(NoJobsError):
        versus(written(cluster), ["fifo"], since=since + timedelta(seconds=1))


def test_the_tables_and_curves_hold_what_was_held(
    lived: tuple[Recording, list[Logged]], logs: dict[str, list[Logged]]
) -> None:
    past = read_history(lived[1])
    columns = figures(dict.fromkeys(("recorded", *POLICIES), past), list(past.jobs))
    text = figures_table(columns)
    assert max(map(len, text.splitlines())) <= 80
    assert all(name.upper() in text for name in POLICIES)
    assert sum(wait.jobs for wait in columns[0].by_size.values()) == 40
    result = pool_result(read_history(logs["fair"]))
    hours, utilization, waiting = curves([result])
    real = figures({"fair": read_history(logs["fair"])}, list(read_history(logs["fair"]).jobs))[0]
    assert sum(utilization) / len(utilization) == pytest.approx(real.utilization)
    assert sum(waiting) / len(waiting) == pytest.approx(
        real.queue_avg_s * real.jobs / (result.samples[-1].at_s)
    )
    assert hours[-1] * 3600 < result.samples[-1].at_s


def test_a_log_that_is_cut_is_as_if_the_rest_were_not_there(
    lived: tuple[Recording, list[Logged]],
) -> None:
    log = lived[1]
    cut = log[0].at + timedelta(hours=1)
    rest = [entry for entry in log if entry.at <= cut]
    whole, short = (versus(some, ["fifo"], end=cut).data() for some in (log, rest))
    assert whole == short
    assert whole["not_ended"]


def test_ticks_are_a_second_apart_or_few() -> None:
    short = Recording(History(START, START + timedelta(hours=1), {}, ()), (), {})
    day = Recording(History(START, START + timedelta(days=1), {}, ()), (), {})
    week = Recording(History(START, START + timedelta(days=7), {}, ()), (), {})
    assert [tick_every_s(recording) for recording in (short, day, week)] == [1.0, 18.0, 60.0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("best", "policy 'best' is not known; there are the orders fair, drf, short, fifo, sjf"),
        ("fair+order=fifo", "'order=fifo' is no setting"),
        ("fair+reservation", "'reservation' is no setting"),
    ],
)
def test_policies_that_are_not_known(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        live_policy(name)


def test_a_log_of_a_wild_week_runs_with_all_invariants_under_any_policy() -> None:
    """Agents, users and verdicts that contradict each other: nothing is assumed of a log."""
    scenario = Scenario(5)
    scenario.run(600)
    log = [Logged(entry.at, entry.event) for entry in scenario.logs["scheduler"]]
    recording = read_recording(log)
    for name in ("fair", "short+preempt=off"):
        scheduler = Scheduler(policy=live_policy(name))
        made = read_history(Rerun(recording, scheduler, every_s=60, check=True).run())
        assert made.jobs.keys() == recording.needs.keys()
        assert made.end <= recording.end
