"""Reclaim: what a team is guaranteed comes back from teams above their guarantee, and only that."""

from __future__ import annotations

from collections.abc import Sequence

from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.service.config import SchedulerSettings
from gangline_schemas.base import Event
from gangline_schemas.events.quota import TeamConfigured
from gangline_schemas.events.scheduling import GpusReserved, StopReason
from gangline_schemas.events.workers import ExitReason
from gangline_schemas.team_limits import TeamConfig
from support.builders.deciding import only, team
from support.builders.scheduler import Cluster, node, started_jobs, stopped_for

HOUR = 3600.0
RUNS: dict[str, object] = {"preemptible": True, "expected_runtime_hours": 20}


def borrowed(
    guarantee: int = 4, *, lenders: int = 4, settings: SchedulerSettings | None = None
) -> Cluster:
    """Eight jobs of one GPU of team cv on eight GPUs; nlp is guaranteed some of them."""
    cluster = Cluster(node("n1", 4), node("n2", 4))
    if settings is not None:
        cluster.decider = Scheduler(settings.limits(), settings.policy())
    cluster.give(TeamConfigured(config=team("nlp", limit=8, guarantee=guarantee)))
    cluster.give(TeamConfigured(config=team("cv", limit=8, guarantee=lenders)))
    for number in range(8):
        cluster.run(f"b{number}", 1, of_team="cv", **RUNS)
    cluster.tick(seconds=HOUR)
    return cluster


def stopped(events: Sequence[Event]) -> list[str]:
    return stopped_for(events, StopReason.PREEMPTED)


def test_a_team_below_its_guarantee_gets_back_what_others_borrowed() -> None:
    cluster = borrowed()

    asked = cluster.submit("mine", 4, priority=90)
    ended = [event for name in stopped(asked) for event in cluster.exit(name, ExitReason.STOPPED)]

    held = only(asked, GpusReserved)
    assert (held.reason, held.cost_gpu_seconds) == ("reclaim", 4 * (30 + HOUR + 60 + 90))
    assert len({share.node_id for share in held.nodes}) == 1, "one node is cleared, not two halves"
    assert started_jobs(ended) == ["mine"]


def test_the_cheapest_are_stopped_first() -> None:
    cluster = borrowed()
    for name in ("b4", "b5", "b6", "b7"):
        cluster.commit(name, 1)

    assert sorted(stopped(cluster.submit("mine", 4))) == ["b4", "b5", "b6", "b7"]


def test_no_team_is_taken_below_its_own_guarantee() -> None:
    cluster = borrowed(guarantee=6, lenders=4)

    assert stopped(cluster.submit("large", 6)) == []
    assert len(stopped(cluster.submit("small", 4))) == 4
    assert stopped(cluster.submit("more", 2)) == []


def test_a_job_that_takes_its_team_above_its_guarantee_is_owed_nothing() -> None:
    cluster = borrowed(guarantee=4)

    assert stopped(cluster.submit("a", 5)) == []
    assert len(stopped(cluster.submit("b", 3))) == 3
    assert stopped(cluster.submit("c", 2)) == [], "three of the four are promised already"
    assert len(stopped(cluster.submit("d", 1))) == 1


def test_what_is_reclaimed_is_not_reclaimed_back() -> None:
    cluster = borrowed()
    for name in stopped(cluster.submit("mine", 4, **RUNS)):
        cluster.exit(name, ExitReason.STOPPED)
    cluster.start("mine")

    assert stopped(cluster.tick(seconds=HOUR)) == []


def test_only_preemptible_gangs_that_ran_long_enough_are_taken() -> None:
    cluster = Cluster(node(gpus=4))
    cluster.give(TeamConfigured(config=team("nlp", limit=8, guarantee=4)))
    cluster.run("firm", 2, of_team="cv", expected_runtime_hours=20)
    cluster.run("young", 2, of_team="cv", **RUNS)
    assert stopped(cluster.submit("mine", 2)) == []

    assert stopped(cluster.tick(seconds=600)) == ["young"]


def test_a_parent_is_owed_for_the_teams_below_it() -> None:
    cluster = Cluster(node(gpus=8))
    cluster.give(TeamConfigured(config=TeamConfig(team="lab", gpu_limit=8, gpu_guarantee=4)))
    cluster.give(TeamConfigured(config=TeamConfig(team="nlp", gpu_limit=8, parent="lab")))
    cluster.run("sibling", 2, of_team="nlp", **RUNS)
    for number in range(3):
        cluster.run(f"b{number}", 2, of_team="cv", **RUNS)
    cluster.tick(seconds=HOUR)
    cluster.commit("sibling", 1)

    asked = cluster.submit("mine", 2)

    assert len(stopped(asked)) == 1
    assert stopped(asked) != ["sibling"], "the cheapest, but of the team that is owed"
    assert stopped(cluster.submit("more", 2)) == []


def test_it_can_be_bounded_and_switched_off() -> None:
    bounded = borrowed(settings=SchedulerSettings(reclaim_worth_hours=0.5))
    off = borrowed(settings=SchedulerSettings(reclaim="off"))

    assert stopped(bounded.submit("mine", 4)) == [], "an hour each is more than half an hour"
    for number in range(8):
        bounded.commit(f"b{number}", 1)
    assert len(stopped(bounded.tick(seconds=1))) == 4
    assert stopped(off.submit("mine", 4)) == []
