"""The order `short`: who needs least, as far as it is known."""

from __future__ import annotations

from datetime import timedelta

import pytest

from builders_scheduler import Cluster, node, started_jobs
from gangline_scheduler.policy.config import Policy, order_named
from gangline_scheduler.policy.short_first import LONG_S, SHORT_S, left_s


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


@pytest.mark.parametrize(("waiting_h", "first"), [(4.9, "w"), (5.1, "x")])
def test_a_running_job_keeps_a_lead(waiting_h: float, first: str) -> None:
    made = Cluster(node(gpus=1), policy=Policy(order=order_named("short")))
    made.run("x", expected_runtime_hours=10)
    made.submit("w", expected_runtime_hours=waiting_h)
    order = order_named("short")
    jobs = [made.job("x"), made.job("w")]

    best = min(jobs, key=lambda job: order.rank(job, made.state, made.now))

    assert best.job_id == first


def test_what_a_job_has_run_counts() -> None:
    made = Cluster(node(gpus=1), policy=Policy(order=order_named("short")))
    made.run("x", expected_runtime_hours=10)
    later = made.now + timedelta(hours=9)

    assert left_s(made.job("x"), made.job("x").ran_by(later)) == pytest.approx(3600)
