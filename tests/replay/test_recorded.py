"""A log as a workload: under the policy that wrote it nothing differs, under another what does."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from gangline_scheduler.core.decide import Scheduler
from gangline_schemas.events.scheduling import ReleaseReason, StopReason
from gangline_simulator.compare import figures, figures_table, pool_result
from gangline_simulator.history import History, Logged, read_history
from gangline_simulator.live_policies import live_policy
from gangline_simulator.picture import curves
from gangline_simulator.recorded import Recording, read_recording
from gangline_simulator.rerun import Rerun, tick_every_s
from gangline_simulator.versus import NoJobsError, versus
from golden.scenario import Scenario
from support.builders.deciding import START
from support.builders.recorded import (
    LIVELY,
    POLICIES,
    TICK_S,
    again,
    eventful,
    furthest,
    simulated,
    starts,
    written,
)
from support.builders.scheduler import Cluster, node


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
