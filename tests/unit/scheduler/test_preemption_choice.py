"""Which gangs preemption stops: the cheapest set, no more than needed, only if worth it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.model import Gang, Job, Member
from gangline_scheduler.core.policy.config import Preemption
from gangline_scheduler.core.policy.victims import cost_gpu_s
from gangline_scheduler.service.config import SchedulerSettings
from gangline_schemas.events.quota import TeamConfigured
from gangline_schemas.events.workers import ExitReason
from gangline_schemas.job import JobState
from support.builders.deciding import START, spec, team
from support.builders.gangs import assigned
from support.builders.preemption import HOUR, RUNS, URGENT, reservation, running, stopped
from support.builders.scheduler import Cluster, node, started_jobs

# --- which are victims ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("why", "fields"),
    [
        ("it did not say preemptible", {"preemptible": False}),
        ("it stands better", {"priority": 5}),
        ("it stands alike: waiting does not count", {"priority": 10}),
        ("it is nearly done", {"expected_runtime_hours": 1.05}),
    ],
)
def test_who_is_no_victim(why: str, fields: dict[str, object]) -> None:
    cluster = running("a", gpus=4, **fields)

    cluster.submit("u", 4, **URGENT)

    assert stopped(cluster.tick(seconds=2 * HOUR / 60)) == [], why


def test_an_attempt_runs_for_ten_minutes_before_it_may_be_stopped() -> None:
    cluster = Cluster(node(gpus=4))
    cluster.run("a", 4, **RUNS)
    assert stopped(cluster.submit("u", 4, **URGENT)) == []

    assert stopped(cluster.tick(seconds=599)) == []
    assert stopped(cluster.tick(seconds=1)) == ["a"]


def test_a_gang_that_does_not_yet_run_is_no_victim() -> None:
    cluster = Cluster(node(gpus=4))
    cluster.submit("a", 4, **RUNS)
    cluster.start("a", ranks=[0, 1, 2])
    cluster.tick(seconds=HOUR)

    assert stopped(cluster.submit("u", 4, **URGENT)) == []


def test_a_job_is_stopped_for_others_three_times_at_most() -> None:
    cluster = running("a", gpus=4)
    for number in range(4):
        asked = cluster.submit(f"u{number}", 4, **URGENT)
        assert stopped(asked) == (["a"] if number < 3 else [])
        if number == 3:
            break
        cluster.exit("a", ExitReason.STOPPED)
        cluster.cancel(f"u{number}")
        cluster.start("a")
        cluster.tick(seconds=HOUR)


def test_a_job_that_is_not_urgent_stops_nobody() -> None:
    cluster = running("a", gpus=4, priority=90)

    cluster.submit("n", 4, priority=20, expected_runtime_hours=1)

    assert stopped(cluster.tick(seconds=60)) == []


# --- which victims -------------------------------------------------------------------------


def test_who_has_just_saved_is_stopped_first() -> None:
    cluster = running("a", "b", "c", "d")
    cluster.commit("c", 100)

    asked = cluster.submit("u", 1, **URGENT)

    assert stopped(asked) == ["c"]
    assert reservation(asked).cost_gpu_seconds == 90 + 90


def test_a_gang_that_spans_nodes_is_stopped_whole_and_only_if_it_is_cheaper() -> None:
    cluster = Cluster(node("n1", 4), node("n2", 4))
    running("wide", gpus=6, cluster=cluster)
    cluster.run("small", 2, **RUNS)
    cluster.tick(seconds=HOUR)

    assert stopped(cluster.submit("u", 2, **URGENT)) == ["small"]
    assert stopped(cluster.submit("v", 4, **URGENT)) == ["wide"]


def test_no_more_are_stopped_than_are_needed() -> None:
    cluster = running("a", gpus=3)
    cluster.run("b", 1, **RUNS)
    cluster.tick(seconds=HOUR)

    assert stopped(cluster.submit("u", 3, **URGENT)) == ["a"]


def test_of_two_nodes_only_as_much_is_cleared_as_the_gang_needs() -> None:
    cluster = Cluster(node("n1", 4), node("n2", 4))
    running(*(f"j{number}" for number in range(8)), cluster=cluster)

    asked = cluster.submit("u", 6, **URGENT)

    assert len(stopped(asked)) == 6
    assert sum(share.gpus for share in reservation(asked).nodes) == 6


def test_one_rack_is_cleared_for_a_gang_that_must_stay_in_one() -> None:
    cluster = Cluster(*(node(f"n{i}", 2, rack=f"r{i // 2}") for i in range(4)))
    running(*(f"j{number}" for number in range(8)), cluster=cluster)
    for number in (0, 2, 4, 5, 6, 7):  # of r0 two have saved, of r1 all
        cluster.commit(f"j{number}", 1)
    topology = {"level": "rack", "mode": "required"}

    asked = cluster.submit("u", 4, topology=topology, **URGENT)

    assert stopped(asked) == ["j4", "j5", "j6", "j7"]
    assert {share.node_id for share in reservation(asked).nodes} == {"n2", "n3"}


def test_gpus_that_come_free_anyway_are_used_before_more_gangs_are_stopped() -> None:
    cluster = running("a", "b", gpus=2)
    cluster.cancel("a")

    assert stopped(cluster.submit("u", 2, **URGENT)) == []
    assert len(stopped(cluster.submit("v", 4, **URGENT))) == 1


def test_cpus_and_memory_are_made_room_for_too() -> None:
    cluster = Cluster(node(gpus=4, cpus=8))
    running("a", "b", cluster=cluster, resources={"cpus_per_gpu": 4})

    asked = cluster.submit("u", 1, resources={"cpus_per_gpu": 8}, **URGENT)

    assert stopped(asked) == ["a", "b"]
    cluster.exit("a", ExitReason.STOPPED)
    assert started_jobs(cluster.submit("t", 1, resources={"cpus_per_gpu": 2})) == []
    assert started_jobs(cluster.exit("b", ExitReason.STOPPED)) == ["u"]


# --- cost and value ------------------------------------------------------------------------


def test_it_is_not_worth_it_when_the_others_end_soon() -> None:
    cluster = running("a", gpus=4, expected_runtime_hours=1.5)

    assert stopped(cluster.submit("u", 4, **URGENT)) == [], "an hour lost for half an hour"

    cluster.commit("a", 1)
    assert stopped(cluster.tick(seconds=1)) == ["a"], "now nothing is lost"


def test_the_whole_set_counts_not_its_cheapest_gang() -> None:
    cluster = running("a", "b", "c", "d", expected_runtime_hours=1.5)
    cluster.commit("a", 1)

    assert stopped(cluster.submit("u", 4, **URGENT)) == [], "three would lose an hour each"
    assert stopped(cluster.submit("v", 1, **URGENT)) == ["a"]


@pytest.mark.parametrize(
    ("saved_after", "resume", "seconds"),
    [
        (None, "auto", 30 + HOUR + 60),
        (HOUR - 10, "auto", 30 + 10 + 60),
        (-10.0, "auto", 30 + HOUR + 60),  # an older attempt's
        (HOUR - 10, "never", 30 + HOUR + 60),  # it starts from scratch
    ],
)
def test_cost(saved_after: float | None, resume: str, seconds: float) -> None:
    where = assigned()
    job = Job(
        "j", spec(gpus=2, checkpoint={"resume": resume}), "u", START, 50, JobState.RUNNING, START
    )
    job = replace(job, gang=Gang(1, (where,), START, (Member.STARTED,) * 2))
    if saved_after is not None:
        job = replace(job, saved_at=START + timedelta(seconds=saved_after))

    assert cost_gpu_s(job, START + timedelta(seconds=HOUR), Preemption()) == 2 * seconds


# --- teams ---------------------------------------------------------------------------------


def test_a_team_at_its_limit_makes_room_among_its_own() -> None:
    cluster = Cluster(node(gpus=8), limit=4)
    running("a", "b", "c", "d", cluster=cluster)

    asked = cluster.submit("u", 2, **URGENT)

    assert len(stopped(asked)) == 2
    for name in stopped(asked):
        cluster.exit(name, ExitReason.STOPPED)
    assert cluster.job("u").gang is not None


def test_who_borrows_takes_nobody_below_what_they_are_guaranteed() -> None:
    cluster = Cluster(node(gpus=4))
    cluster.give(TeamConfigured(config=team("cv", limit=64, guarantee=3)))
    for name in ("a", "b", "c", "d"):
        cluster.run(name, 1, of_team="cv", **RUNS)
    cluster.tick(seconds=HOUR)

    assert len(stopped(cluster.submit("u", 1, **URGENT))) == 1
    assert stopped(cluster.submit("v", 1, **URGENT)) == []


# --- off -----------------------------------------------------------------------------------


def test_it_is_off_when_the_configuration_says_so() -> None:
    told = SchedulerSettings(preempt="off")
    cluster = Cluster(node(gpus=4))
    cluster.decider = Scheduler(told.limits(), told.policy())
    running("a", gpus=4, cluster=cluster)

    cluster.submit("u", 4, **URGENT)

    assert stopped(cluster.tick(seconds=60)) == []
