"""The pass of a preemptive order: running jobs that fall out of what fits stop, within bounds."""

from __future__ import annotations

import pytest

from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.order import Order
from gangline_schemas.events.quota import DrainAdmitted, TeamConfigured
from gangline_schemas.events.workers import ExitReason, NodeInfo
from gangline_simulator.papers.orders import ShortestRemaining, Tiresias
from gangline_simulator.papers.scheduler import PreemptiveScheduler
from support.builders.deciding import team
from support.builders.scheduler import Cluster, node, started_jobs, stopped_for

MIN_RUNTIME_S = 601


def preemptive(*nodes: NodeInfo, order: Order | None = None) -> Cluster:
    """A cluster whose ticks run the order's own passes, and nothing else does."""
    policy = Policy(order=order or ShortestRemaining(), reservation="off")
    made = Cluster(*nodes, policy=policy)
    made.decider = PreemptiveScheduler(policy)
    return made


def run(cluster: Cluster, job_id: str, gpus: int, **fields: object) -> None:
    """Start a job by a tick."""
    cluster.submit(job_id, gpus, **fields)  # type: ignore[arg-type]
    assert started_jobs(cluster.tick()) == [job_id]
    cluster.start(job_id)


def busy(order: Order | None = None, **fields: object) -> Cluster:
    """Two GPUs, which the job long holds for 10 hours."""
    made = preemptive(node(gpus=2), order=order)
    run(made, "long", 2, **({"expected_runtime_hours": 10, "preemptible": True} | fields))
    return made


def test_a_shorter_job_takes_the_place_of_a_longer_one() -> None:
    made = busy()
    made.submit("short", gpus=1, expected_runtime_hours=1)

    assert stopped_for(made.tick(seconds=MIN_RUNTIME_S)) == ["long"]
    made.exit("long", ExitReason.STOPPED)
    assert started_jobs(made.tick()) == ["short"]
    assert made.job("long").gang is None


def test_least_attained_service_comes_first() -> None:
    made = busy(Tiresias())
    made.submit("new", gpus=2)

    # Both have held less than 18,000 GPU-seconds.
    assert stopped_for(made.tick(seconds=9_000)) == []
    assert stopped_for(made.tick(seconds=1)) == ["long"]


@pytest.mark.parametrize(
    ("fields", "after_s"),
    [({"preemptible": False}, MIN_RUNTIME_S), ({}, 599), ({"expected_runtime_hours": 0.5}, 1000)],
    ids=["not preemptible", "just started", "shorter itself"],
)
def test_some_jobs_are_not_stopped(fields: dict[str, object], after_s: float) -> None:
    made = busy(**fields)
    made.submit("short", gpus=1, expected_runtime_hours=1)

    assert stopped_for(made.tick(seconds=after_s)) == []


def test_no_job_is_stopped_for_a_team_without_room() -> None:
    made = busy()
    made.give(TeamConfigured(config=team("cv", limit=0)))
    made.submit("short", gpus=1, of_team="cv", expected_runtime_hours=1)

    assert stopped_for(made.tick(seconds=MIN_RUNTIME_S)) == []


@pytest.mark.parametrize("order", [ShortestRemaining(), Tiresias()], ids=["srtf", "tiresias"])
def test_no_job_is_stopped_for_one_that_no_node_can_hold(order: Order) -> None:
    made = preemptive(node("n1", 8), node("n2", 8), order=order)
    run(made, "x", 8, preemptible=True, expected_runtime_hours=9)
    wide = {"level": "node", "mode": "required"}
    made.submit("never", 16, topology=wide, expected_runtime_hours=1)
    made.submit("next", 8, expected_runtime_hours=2)

    out = made.tick(3600)
    assert (started_jobs(out), stopped_for(out)) == (["next"], [])


def test_where_all_have_room_all_start_in_order() -> None:
    made = preemptive(node(gpus=4))
    run(made, "first", 2, expected_runtime_hours=1)
    for name, hours in (("long", 9), ("short", 3)):
        made.submit(name, gpus=1, expected_runtime_hours=hours)

    assert started_jobs(made.tick()) == ["short", "long"]


def test_running_jobs_are_compared_when_a_node_left_even_if_no_other_may_start() -> None:
    made = preemptive(node(gpus=2), node("n2", gpus=2))
    for name, hours in (("short", 1), ("long", 9)):
        run(made, name, 2, preemptible=True, expected_runtime_hours=hours)
    made.give(TeamConfigured(config=team("cv", limit=0)))
    made.submit("waits", gpus=1, of_team="cv", expected_runtime_hours=1)
    made.give(DrainAdmitted(node_id="n1", drain=True, move_jobs=False, user="ops"))

    assert stopped_for(made.tick(seconds=MIN_RUNTIME_S)) == ["long"]
