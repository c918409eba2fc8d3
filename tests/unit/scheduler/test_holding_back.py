"""Which waiting jobs may hold others back: only those that could start (policy/eligible.py)."""

from __future__ import annotations

import pytest

from gangline_scheduler.core.policy.config import Policy, order_named
from gangline_schemas.events.faults import NodeFailed
from gangline_schemas.events.quota import DrainAdmitted, TeamBudgetChanged, TeamConfigured
from gangline_schemas.team_limits import TeamConfig
from support.builders.scheduler import Cluster, node, started_jobs


def lenders(*nodes: object, **ghost: object) -> Cluster:
    """Team `ghost` has a guarantee; `rich` has 4 GPUs and may borrow 12."""
    cluster = Cluster(*(nodes or (node("n1", 16),)), limit=4)  # type: ignore[arg-type]
    owed = {"team": "ghost", "gpu_limit": 16, "gpu_guarantee": 16, **ghost}
    cluster.give(TeamConfigured(config=TeamConfig.model_validate(owed)))
    cluster.give(TeamConfigured(config=TeamConfig(team="rich", gpu_limit=4, borrow_limit=12)))
    return cluster


def borrows(cluster: Cluster) -> bool:
    """Whether a job of `rich` above its limit starts within a few ticks."""
    out = cluster.submit("want", 8, of_team="rich")
    for _ in range(3):
        out += cluster.tick(20)
    return "want" in started_jobs(out)


def test_a_job_that_could_start_within_its_guarantee_holds_borrowing_back() -> None:
    cluster = lenders()
    cluster.run("x", 4)
    cluster.submit("owed", 16, of_team="ghost")
    assert not borrows(cluster)


def test_a_team_whose_budget_is_spent_holds_nobody_back() -> None:
    cluster = lenders(gpu_hours_per_month=10)
    spent = {"spent_gpu_hours": 10, "gpu_hours_per_month": 10}
    cluster.give(TeamBudgetChanged(team="ghost", month="2026-11", exhausted=True, **spent))
    cluster.submit("owed", 16, of_team="ghost")
    assert borrows(cluster)


def test_a_topology_that_no_nodes_have_holds_nobody_back() -> None:
    cluster = lenders(node("n1", 8), node("n2", 8, rack="r2"))
    cluster.submit("owed", 16, of_team="ghost", topology={"level": "node", "mode": "required"})
    cluster.tick(20)
    assert borrows(cluster)


def test_a_model_that_no_node_has_holds_nobody_back_beyond_those_who_are_told_why() -> None:
    cluster = lenders()
    for number in range(60):
        cluster.submit(f"m{number}", 8, priority=10)
    wanted = {"gpus": 1, "gpu_type": "b300"}
    cluster.submit("owed", 1, of_team="ghost", priority=100, resources=wanted)
    cluster.tick(20)
    assert borrows(cluster)


def test_a_model_that_its_team_may_not_hold_holds_nobody_back() -> None:
    cluster = lenders(gpu_types={"h100": 16})
    cluster.submit("owed", 16, of_team="ghost")
    assert borrows(cluster)


def test_a_job_above_the_limit_of_a_team_above_its_own_holds_nobody_back() -> None:
    cluster = lenders()
    cluster.give(TeamConfigured(config=TeamConfig(team="root", gpu_limit=16, gpu_guarantee=16)))
    child = {"team": "child", "gpu_limit": 12, "gpu_guarantee": 12, "parent": "root"}
    sibling = {"team": "sibling", "gpu_limit": 8, "parent": "root"}
    for config in (child, sibling):
        cluster.give(TeamConfigured(config=TeamConfig.model_validate(config)))
    cluster.run("s", 8, of_team="sibling")
    cluster.submit("owed", 12, of_team="child")
    assert borrows(cluster)


@pytest.mark.parametrize("how", ["drained", "failed"])
def test_a_job_that_only_lost_or_drained_nodes_could_hold_holds_nobody_back(how: str) -> None:
    cluster = lenders(node("n1", 12), node("n2", 4))
    if how == "drained":
        cluster.give(DrainAdmitted(node_id="n2", drain=True, user="ada"))
    else:
        cluster.give(NodeFailed(node_id="n2", incarnation="i1", reason="silent", silent_s=60))
    cluster.submit("owed", 16, of_team="ghost")
    assert borrows(cluster)


@pytest.mark.parametrize("order", ["fifo", "sjf"])
def test_in_a_strict_order_a_job_that_no_node_can_hold_holds_nobody_up(order: str) -> None:
    cluster = Cluster(node("n1", 8), policy=Policy(order=order_named(order)))
    cluster.submit("never", 16, expected_runtime_hours=1)
    cluster.submit("first", 8, expected_runtime_hours=2)
    assert "first" in [*cluster.state.live, *started_jobs(cluster.tick(1))]


def test_an_elastic_gang_grows_although_a_job_waits_that_its_team_may_not_have() -> None:
    cluster = Cluster(node("n1", 8), limit=8)
    cluster.run("e", resources={"gpus": 8, "min_gpus": 2}, expected_runtime_hours=50)
    cluster.submit("never", 9, of_team="cv")
    assert cluster.job("e").allocated_gpus == 8
