"""Preemption strictly improves: equal jobs never take turns, and the standings get better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from gangline_scheduler.core.policy.config import Policy, Preemption, order_named
from gangline_schemas.events.quota import TeamConfigured
from gangline_schemas.events.workers import ExitReason
from gangline_schemas.team_limits import TeamConfig
from support.builders.deciding import team
from support.builders.scheduler import Cluster, node, stopped_for

RUNS: dict[str, object] = {"preemptible": True, "expected_runtime_hours": 4}
HOUR = 3600.0
STEP_S = 300


def day(cluster: Cluster, names: Sequence[str], hours: float) -> Counter[str]:
    """A day of steps in which gangs stop on request and end when they have run enough."""
    stops: Counter[str] = Counter()
    for _ in range(24 * 3600 // STEP_S):
        stops.update(stopped_for(cluster.tick(seconds=STEP_S)))
        for name in names:
            gang = cluster.job(name).gang if name in cluster.state.jobs else None
            if gang is None:
                continue
            cluster.start(name)
            if gang.stop is not None:
                stops.update(stopped_for(cluster.exit(name, ExitReason.STOPPED)))
            elif cluster.job(name).ran_by(cluster.now) >= hours * HOUR:
                stops.update(stopped_for(cluster.exit(name)))
            else:
                cluster.commit(name, int(cluster.job(name).ran_by(cluster.now)),
                               cluster.job(name).attempt)  # fmt: skip
    return stops


def two_teams(gpus: int, *, guarantee: int) -> Cluster:
    cluster = Cluster(node(gpus=gpus))
    for name in ("nlp", "cv"):
        cluster.give(TeamConfigured(config=team(name, limit=gpus, guarantee=guarantee)))
    return cluster


def test_equal_jobs_of_equal_teams_never_stop_each_other() -> None:
    cluster = two_teams(9, guarantee=4)
    names = [f"j{number}" for number in range(48)]
    for number, name in enumerate(names):
        cluster.submit(name, of_team=("nlp", "cv")[number % 2], priority=10, **RUNS)

    assert day(cluster, names, hours=3) == Counter()


@pytest.mark.parametrize("says", [{"expected_runtime_hours": 4}, {}])
def test_equal_jobs_never_stop_each_other_under_the_order_short(says: dict[str, object]) -> None:
    policy = Policy(order=order_named("short"), preemption=Preemption(preempt_below=101))
    cluster = Cluster(node(gpus=9), policy=policy)
    names = [f"j{number}" for number in range(48)]
    for name in names:
        cluster.submit(name, preemptible=True, **says)
        cluster.tick(seconds=60)

    assert day(cluster, names, hours=3) == Counter()


def test_a_small_job_does_not_stop_the_large_one_that_was_stopped_for_it() -> None:
    cluster = two_teams(8, guarantee=4)
    names = ["a1", "a2", "a3", "a4", "a5", "a6", "b1", "b2", "wide"]
    for name in names[:8]:
        cluster.submit(name, of_team="nlp" if name < "b" else "cv", priority=10, **RUNS)
    cluster.submit("wide", 3, of_team="cv", priority=10, **RUNS)

    stops = day(cluster, names, hours=30)

    assert all(count == 1 for count in stops.values()), stops


def test_a_surplus_goes_to_the_team_that_has_less_of_it() -> None:
    cluster = two_teams(8, guarantee=2)
    for number in range(6):
        cluster.run(f"a{number}", of_team="nlp", priority=10, **RUNS)
    for number in range(2):
        cluster.run(f"b{number}", of_team="cv", priority=10, **RUNS)
    cluster.tick(seconds=HOUR)

    asked = [cluster.submit(f"u{number}", of_team="cv", priority=10, **RUNS) for number in range(3)]

    assert [len(stopped_for(events)) for events in asked] == [1, 1, 0], "4 and 4, then it is even"


def test_a_team_within_its_guarantee_keeps_it_when_nodes_are_lost() -> None:
    cluster = Cluster(node("n1", 4), node("n2", 4))
    for name in ("nlp", "cv"):
        cluster.give(TeamConfigured(config=team(name, limit=8, guarantee=4)))
    cluster.run("a", 4, of_team="nlp", priority=50, **RUNS)
    cluster.run("b", 4, of_team="cv", priority=10, **RUNS)
    lost = cluster.job("b").gang
    assert lost is not None
    cluster.tick(seconds=HOUR)
    cluster.leave(lost.nodes[0].node_id)
    cluster.exit("b", ExitReason.STOPPED)

    told = [event for _ in range(20) for event in cluster.tick(seconds=60)]

    assert cluster.job("b").gang is None
    assert stopped_for(told) == [], "what is left is all within the guarantee of nlp"


def test_a_surplus_by_weight_and_urgent_jobs_never_take_turns() -> None:
    """What b and c take by their weights, the urgent jobs of a do not take back, and no team again.

    Nothing ends in this day, so each gang is stopped once at most.
    """
    cluster = Cluster(node("n1", 12))
    for name, weight in (("a", 1), ("b", 2), ("c", 3)):
        config = TeamConfig(team=name, gpu_limit=12, weight=weight, surplus="reclaim_by_weight")
        cluster.give(TeamConfigured(config=config))
    names = []
    for name, priority in (("a", 10), ("b", 50), ("c", 15)):
        for number in range(12):
            names.append(f"{name}{number}")
            cluster.submit(names[-1], of_team=name, priority=priority, **RUNS)

    stops = day(cluster, names, hours=30)

    assert stops, "b and c get their parts"
    assert set(stops.values()) == {1}, stops
    assert [cluster.state.used.get(name, 0) for name in ("a", "b", "c")] == [2, 4, 6]
