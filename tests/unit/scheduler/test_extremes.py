"""The least and the most that a job or a node may say, where the scheduler computes with it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gangline_scheduler.core.model import Demand
from gangline_scheduler.core.policy.estimate import LONGEST_S, MOST_RATIO, Estimates
from gangline_scheduler.core.policy.placement import ranks_in
from gangline_schemas.events.scheduling import GangStopping
from gangline_schemas.job import LEAST_HOURS
from gangline_schemas.resources import LEAST_SHARE
from support.builders.scheduler import Cluster, node, started_jobs


@pytest.mark.parametrize("share", [5e-324, 1e-310, LEAST_SHARE])
def test_however_small_a_share_is_a_node_holds_its_gpus(share: float) -> None:
    assert ranks_in(Demand(4, cpus_per_gpu=share), 4, cpus=1e6, memory_gb=1.0) == 4
    assert ranks_in(Demand(4, memory_per_gpu_gb=share), 4, cpus=1.0, memory_gb=1e9) == 4


@pytest.mark.parametrize("field", ["cpus_per_gpu", "memory_per_gpu_gb"])
def test_a_job_with_the_smallest_shares_starts(field: str) -> None:
    cluster = Cluster(node("n1", 8))
    started = cluster.submit("x", 8, resources={"gpus": 8, field: LEAST_SHARE})
    assert started_jobs(started) == ["x"]


def test_runs_that_took_much_longer_than_they_said_move_estimates_by_a_bounded_factor() -> None:
    cluster = Cluster(node("n1", 4))
    for number in range(3):
        cluster.run(f"s{number}", 1, expected_runtime_hours=LEAST_HOURS)
        cluster.now += timedelta(days=300)
        cluster.exit(f"s{number}")
    cluster.run("long", 2, expected_runtime_hours=8760)
    cluster.submit("big", 4)
    cluster.tick(60)
    cluster.tick(31 * 60)
    estimates = Estimates(cluster.state, cluster.now, 3600.0)
    expected_s = estimates.runtime_s(cluster.job("long"))
    assert expected_s == pytest.approx(8760 * 3600 * MOST_RATIO)
    assert estimates.end(cluster.job("long")) == cluster.now + timedelta(seconds=LONGEST_S)


def test_a_node_without_gpus_is_no_place_to_clear() -> None:
    cluster = Cluster(node("n0", 8, model="h100"), node("n1", 0))
    h100 = {"gpus": 8, "gpu_type": "h100"}
    cluster.run("v", 8, preemptible=True, resources=h100, priority=90)
    cluster.now += timedelta(hours=1)
    cluster.commit("v", 1)
    asked = cluster.submit("u", 8, priority=1, resources=h100)
    assert [event.job_id for event in asked if isinstance(event, GangStopping)] == ["v"]
