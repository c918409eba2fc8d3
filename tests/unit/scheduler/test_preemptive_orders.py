"""Preemptive orders on the live scheduler: who falls out of what fits is stopped, within bounds."""

from __future__ import annotations

import pytest

from builders_deciding import team
from builders_scheduler import Cluster, node, started_jobs, stopped_for
from gangline_scheduler.core.policy.config import Policy, order_named
from gangline_schemas.base import Event
from gangline_schemas.events.quota import DrainAdmitted, TeamConfigured
from gangline_schemas.events.workers import ExitReason

MIN_RUNTIME_S = 601


def cluster(order: str = "srtf", **fields: object) -> Cluster:
    """Two GPUs, which the job long holds for 10 hours."""
    made = Cluster(node(gpus=2), policy=Policy(order=order_named(order)))
    given = {"expected_runtime_hours": 10, "preemptible": True} | fields
    made.run("long", gpus=2, **given)
    return made


def stopped(decided: list[Event]) -> list[str]:
    return stopped_for(decided)


def test_a_shorter_job_takes_the_place_of_a_longer_one() -> None:
    made = cluster()
    made.submit("short", gpus=1, expected_runtime_hours=1)

    assert stopped(made.tick(seconds=MIN_RUNTIME_S)) == ["long"]
    made.exit("long", ExitReason.STOPPED)
    assert started_jobs(made.tick()) in (["short"], [])
    assert made.job("short").gang is not None
    assert made.job("long").gang is None


def test_least_attained_service_comes_first() -> None:
    made = cluster("tiresias")
    made.submit("new", gpus=2)

    assert stopped(made.tick(seconds=9_000)) == []  # both have held less than 18,000 GPU-seconds
    assert stopped(made.tick(seconds=1)) == ["long"]


@pytest.mark.parametrize(
    ("fields", "after_s"),
    [({"preemptible": False}, MIN_RUNTIME_S), ({}, 599), ({"expected_runtime_hours": 0.5}, 1000)],
    ids=["not preemptible", "just started", "shorter itself"],
)
def test_who_is_not_stopped(fields: dict[str, object], after_s: float) -> None:
    made = cluster(**fields)
    made.submit("short", gpus=1, expected_runtime_hours=1)

    assert stopped(made.tick(seconds=after_s)) == []


def test_nobody_is_stopped_for_a_team_that_has_no_room() -> None:
    made = cluster()
    made.give(TeamConfigured(config=team("cv", limit=0)))
    made.submit("short", gpus=1, of_team="cv", expected_runtime_hours=1)

    assert stopped(made.tick(seconds=MIN_RUNTIME_S)) == []


def test_where_all_have_room_all_start_in_order() -> None:
    made = Cluster(node(gpus=4), policy=Policy(order=order_named("srtf")))
    made.run("first", gpus=2, expected_runtime_hours=1)
    made.give(TeamConfigured(config=team(limit=2)))
    for name, hours in (("long", 9), ("short", 3)):
        made.submit(name, gpus=1, expected_runtime_hours=hours)
    made.give(TeamConfigured(config=team(limit=64)))

    assert [made.job(name).gang is not None for name in ("long", "short", "first")] == [True] * 3
    assert made.job("short").gang.nodes[0].gpus == (2,)  # type: ignore[union-attr]


def test_who_runs_is_compared_when_a_node_left_even_if_nobody_else_may_start() -> None:
    made = Cluster(node(gpus=2), node("n2", gpus=2), policy=Policy(order=order_named("srtf")))
    for name, hours in (("short", 1), ("long", 9)):
        made.run(name, gpus=2, preemptible=True, expected_runtime_hours=hours)
    made.give(TeamConfigured(config=team("cv", limit=0)))
    made.submit("waits", gpus=1, of_team="cv", expected_runtime_hours=1)
    made.give(DrainAdmitted(node_id="n1", drain=True, move_jobs=False, user="ops"))

    assert stopped(made.tick(seconds=MIN_RUNTIME_S)) == ["long"]
