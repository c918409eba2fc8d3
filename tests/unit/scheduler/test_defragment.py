"""Defragmentation: gangs move out of the way of one for which enough is free, but apart."""

from __future__ import annotations

from collections.abc import Sequence

from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.service.config import SchedulerSettings
from gangline_schemas.base import Event
from gangline_schemas.events.scheduling import GangAllocated, GpusReserved, StopReason
from gangline_schemas.events.workers import ExitReason, NodeJoined
from support.builders.deciding import every
from support.builders.scheduler import Cluster, node, started_jobs, stopped_for

HOUR = 3600.0
RUNS: dict[str, object] = {"preemptible": True, "expected_runtime_hours": 20}
WHOLE: dict[str, object] = {
    "topology": {"level": "node", "mode": "required"},
    "expected_runtime_hours": 1,
}


def apart(settings: SchedulerSettings | None = None, **fields: object) -> Cluster:
    """Two nodes of four GPUs, of which one and three are used: a and b have run for an hour."""
    cluster = Cluster(node("n1", 4), node("n2", 4))
    if settings is not None:
        cluster.decider = Scheduler(settings.limits(), settings.policy())
    cluster.run("a", 1, **{**RUNS, **fields})
    cluster.run("filler", 3)
    cluster.run("b", 3, **{**RUNS, **fields})
    cluster.cancel("filler")
    for rank in range(3):
        cluster.exit("filler", ExitReason.STOPPED, ranks=[rank])
    cluster.tick(seconds=HOUR)
    return cluster


def moved(events: Sequence[Event]) -> list[str]:
    return stopped_for(events, StopReason.DEFRAGMENT)


def test_a_small_gang_moves_and_the_large_one_has_its_node() -> None:
    cluster = apart()
    cluster.submit("large", 4, **WHOLE)

    asked = cluster.tick(seconds=1)
    ended = cluster.exit("a", ExitReason.STOPPED)

    assert moved(asked) == ["a"]
    held = {event.job_id: event for event in every(asked, GpusReserved)}
    assert (held["large"].reason, held["large"].victims) == ("defragment", ("a",))
    assert [(share.node_id, share.gpus) for share in held["large"].nodes] == [("n1", 4)]
    assert [(share.node_id, share.gpus) for share in held["a"].nodes] == [("n2", 1)]
    assert held["large"].cost_gpu_seconds < held["large"].value_gpu_seconds
    where = {event.job_id: event.nodes[0].node_id for event in every(ended, GangAllocated)}
    assert where == {"large": "n1", "a": "n2"}, "both go on at once"
    assert cluster.state.reserved == {}
    assert cluster.job("a").preemptions == 0


def test_nobody_takes_the_place_that_a_moved_gang_goes_to() -> None:
    cluster = apart()
    cluster.submit("large", 4, **WHOLE)
    cluster.tick(seconds=1)

    assert started_jobs(cluster.submit("small", 1, priority=20)) == []
    assert sorted(started_jobs(cluster.exit("a", ExitReason.STOPPED))) == ["a", "large"]


def test_nobody_moves_when_the_moved_would_have_no_place() -> None:
    cluster = apart()
    cluster.run("c", 1)
    cluster.submit("large", 4, **WHOLE)

    assert moved(cluster.tick(seconds=1)) == []


def test_nobody_moves_who_did_not_say_that_it_may() -> None:
    cluster = apart(preemptible=False)
    cluster.submit("large", 4, **WHOLE)

    assert moved(cluster.tick(seconds=1)) == []


def test_nobody_moves_when_it_costs_more_than_it_is_worth() -> None:
    cluster = apart(expected_runtime_hours=1.2)
    cluster.submit("large", 4, **WHOLE)

    assert moved(cluster.tick(seconds=1)) == [], "an hour of a's work, for minutes of waiting"


def test_only_so_many_move_in_an_hour() -> None:
    cluster = apart(SchedulerSettings(defragment_moves_per_hour=1))
    cluster.submit("large", 4, **{**WHOLE, "expected_runtime_hours": 20})
    assert moved(cluster.tick(seconds=1)) == ["a"]
    cluster.exit("a", ExitReason.STOPPED)
    cluster.start("a")
    cluster.give(NodeJoined(node=node("m1", 4)))
    cluster.run("c", 2, **RUNS)
    cluster.run("other", 2)
    cluster.give(NodeJoined(node=node("m2", 4)))
    cluster.run("d", 2, **RUNS)
    cluster.cancel("other")
    cluster.exit("other", ExitReason.STOPPED)
    cluster.submit("next", 4, **WHOLE)

    assert moved(cluster.tick(seconds=HOUR / 2)) == []
    assert len(moved(cluster.tick(seconds=HOUR / 2))) == 1


def test_it_is_off_when_the_configuration_says_so() -> None:
    cluster = apart(SchedulerSettings(defragment="off"))
    cluster.submit("large", 4, **WHOLE)

    assert moved(cluster.tick(seconds=1)) == []
