"""The order `short`: who needs least, as far as it is known."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gangline_scheduler.core.policy.config import Policy, Preemption, order_named
from gangline_scheduler.core.policy.short_first import (
    LONG_S,
    MOST_STRETCH,
    SHORT_S,
    STRETCH,
    left_s,
    stretch,
)
from support.builders.scheduler import Cluster, node, started_jobs


def cluster() -> Cluster:
    """One GPU, which the job x holds."""
    made = Cluster(node(gpus=1), policy=Policy(order=order_named("short")))
    made.run("x")
    return made


def first_after_x(made: Cluster) -> list[str]:
    return started_jobs(made.cancel("x") + made.exit("x"))


def test_the_shortest_goes_first() -> None:
    made = cluster()
    made.submit("long", expected_runtime_hours=9)
    made.submit("short", expected_runtime_hours=0.5)
    assert first_after_x(made) == ["short"]


def test_who_says_nothing_counts_as_an_hour_and_then_as_days() -> None:
    made = cluster()
    job = made.job("x")
    assert left_s(job, 59_999) == SHORT_S
    assert left_s(job, 60_001) == LONG_S

    made.submit("two-hours", expected_runtime_hours=2)
    made.submit("silent")
    made.submit("half-an-hour", expected_runtime_hours=0.5)
    assert first_after_x(made) == ["half-an-hour"]


def test_equals_go_by_submission() -> None:
    made = cluster()
    made.submit("b")
    made.tick(seconds=1)
    made.submit("a")
    assert first_after_x(made) == ["b"]


def test_a_priority_that_is_a_step_better_beats_a_shorter_job() -> None:
    made = cluster()
    made.submit("short", expected_runtime_hours=0.1, priority=50)
    made.submit("urgent", expected_runtime_hours=50, priority=10)
    assert first_after_x(made) == ["urgent"]


def test_what_a_job_has_run_counts() -> None:
    made = Cluster(node(gpus=1), policy=Policy(order=order_named("short")))
    made.run("x", expected_runtime_hours=10)
    later = made.now + timedelta(hours=9)

    assert left_s(made.job("x"), made.job("x").ran_by(later)) == pytest.approx(3600)


def test_the_stretch_follows_the_work_that_waits() -> None:
    made = cluster()
    assert stretch(made.state) == STRETCH
    made.submit("day", expected_runtime_hours=23)
    assert stretch(made.state) == STRETCH
    made.submit("two-days", expected_runtime_hours=48)
    assert STRETCH + 14 < stretch(made.state) < STRETCH + 17
    made.submit("weeks", expected_runtime_hours=24 * 30)
    assert stretch(made.state) == MOST_STRETCH
    made.cancel("weeks")
    made.cancel("two-days")
    assert stretch(made.state) == STRETCH


@pytest.mark.parametrize(("backlog_hours", "first"), [(1, "old"), (24 * 30, "short")])
def test_a_long_job_that_waited_is_passed_by_short_ones_while_the_backlog_is_long(
    backlog_hours: float, first: str
) -> None:
    made = cluster()
    made.submit("old", expected_runtime_hours=10)
    made.tick(seconds=24 * 3600)
    made.submit("backlog", expected_runtime_hours=backlog_hours, priority=90)
    made.submit("short", expected_runtime_hours=1)
    assert first_after_x(made) == [first]


def test_a_job_may_be_stopped_once_more_for_each_half_day_that_it_has_run() -> None:
    settings = Preemption(max_preemptions=3)
    assert settings.may_stop_again(2, ran_s=0)
    assert not settings.may_stop_again(3, ran_s=12 * 3600 - 1)
    assert settings.may_stop_again(3, ran_s=12 * 3600)
    assert not Preemption(max_preemptions=0).may_stop_again(0, ran_s=1e9)


def test_gangs_are_stopped_by_the_order_in_which_they_start() -> None:
    """A job that waited long for its GPUs is not stopped for one that needs less."""
    made = Cluster(node(gpus=1), policy=Policy(order=order_named("short")))
    made.run("x", expected_runtime_hours=10)
    made.tick(seconds=7 * 3600)
    made.submit("w", expected_runtime_hours=2)
    order, jobs = order_named("short"), [made.job("x"), made.job("w")]

    by_standing = sorted(jobs, key=lambda job: order.standing(job, made.state, made.now))
    by_rank = sorted(jobs, key=lambda job: order.rank(job, made.state, made.now))

    assert [job.job_id for job in by_standing] == [job.job_id for job in by_rank] == ["x", "w"]


@pytest.mark.parametrize(("hours", "first"), [(3.9, "later"), (4.1, "earlier")])
def test_of_jobs_that_say_nothing_the_one_submitted_earlier_has_its_gpus(
    hours: float, first: str
) -> None:
    made = Cluster(node(gpus=2), policy=Policy(order=order_named("short"), reservation="off"))
    made.run("x")
    made.submit("earlier", 2)
    made.tick(seconds=hours * 3600)
    made.run("later")
    order, jobs = order_named("short"), [made.job("earlier"), made.job("later")]

    best = min(jobs, key=lambda job: order.standing(job, made.state, made.now))

    assert best.job_id == first


@pytest.mark.parametrize(("hours", "started"), [(4.9, ["y"]), (5.1, [])])
def test_gpus_are_reserved_for_a_job_that_is_late(hours: float, started: list[str]) -> None:
    """It waited for the five hours that it needs: half of the time in which it may be passed."""
    made = Cluster(node(gpus=2), policy=Policy(order=order_named("short")))
    made.run("x", expected_runtime_hours=20)
    made.submit("wide", 2, expected_runtime_hours=5)
    made.tick(seconds=hours * 3600)

    assert started_jobs(made.submit("y", expected_runtime_hours=30) + made.tick()) == started
