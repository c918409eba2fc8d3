"""An advised interval is what the next attempt saves at, where the job's spec wants it."""

from __future__ import annotations

from gangline_schemas.base import Event
from gangline_schemas.checkpoint_policy import CheckpointPolicy
from gangline_schemas.events.checkpoints import IntervalAdvised
from gangline_schemas.events.scheduling import CheckpointIntervalChanged, GangAllocated
from support.builders.deciding import only
from support.builders.scheduler import Cluster, node


def running(*, adapts: bool) -> Cluster:
    cluster = Cluster(node())
    cluster.run("a", checkpoint=CheckpointPolicy(adapt_interval=adapts))
    return cluster


def advise(cluster: Cluster, interval_s: float, attempt: int = 1, job_id: str = "a") -> list[Event]:
    return cluster.give(
        IntervalAdvised(
            job_id=job_id, attempt=attempt, interval_s=interval_s, limited_by="optimum",
            cost_s=1.0, busy_s=10.0, mtbf_s=1e5, failures=0.0, lost_s=200.0, reason="because",
        )
    )  # fmt: skip


def next_interval(cluster: Cluster) -> float | None:
    return only(cluster.fail("a"), GangAllocated).checkpoint_interval_s


def test_the_next_attempt_saves_as_often_as_was_advised_last() -> None:
    cluster = running(adapts=True)
    assert only(advise(cluster, 300.0), CheckpointIntervalChanged).interval_s == 300.0
    assert advise(cluster, 300.0) == []
    advise(cluster, 414.0)
    assert next_interval(cluster) == 414.0
    assert next_interval(cluster) == 414.0


def test_a_job_that_does_not_ask_for_it_keeps_its_own() -> None:
    cluster = running(adapts=False)
    assert advise(cluster, 300.0) == []
    assert next_interval(cluster) is None


def test_before_it_was_advised_the_spec_counts() -> None:
    cluster = running(adapts=True)
    assert advise(cluster, 300.0, job_id="b") == []
    assert next_interval(cluster) is None
