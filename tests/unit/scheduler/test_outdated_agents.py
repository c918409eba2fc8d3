"""Nodes whose agents are older than the oldest accepted release: kept off, and never lost."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.invariants import consistent
from gangline_scheduler.core.policy.configured import Limits
from gangline_scheduler.core.snapshot import fingerprint
from gangline_schemas.base import Event
from gangline_schemas.events.faults import NodeFailed, NodeRecovered
from gangline_schemas.events.quota import DrainAdmitted
from gangline_schemas.events.scheduling import GangStopping, NodeAdmitted, NodeCordoned, StopReason
from gangline_schemas.events.workers import ExitReason, NodeJoined
from gangline_schemas.memory import REMEMBERED
from support.builders.deciding import every, only
from support.builders.scheduler import Cluster, node, started_jobs

OLDEST = "0.3.0"
OLD = node(release="0.2.9")
FAILED = NodeFailed(node_id="n1", incarnation="i1", reason="silent")
RECOVERED = NodeRecovered(node_id="n1", incarnation="i1", was="failed")


def upgraded(cluster: Cluster, oldest: str | None = OLDEST) -> list[Event]:
    """The scheduler is one of a release that accepts these agents; its first tick."""
    cluster.decider = Scheduler(Limits(oldest_agents=oldest))
    return cluster.tick()


def ruled() -> Cluster:
    """A scheduler that accepts agents from `OLDEST` on."""
    return Cluster(oldest_agents=OLDEST)


def drain(cluster: Cluster, *, on: bool, move_jobs: bool = True) -> list[Event]:
    return cluster.give(DrainAdmitted(node_id="n1", drain=on, move_jobs=move_jobs, user="ada"))


def checked(cluster: Cluster) -> None:
    """What is derived is right, and the log gives this state."""
    assert consistent(cluster.state) == []
    assert fingerprint(cluster.replayed()) == fingerprint(cluster.state)


@pytest.mark.parametrize("release", ["0.1.0", "0.2.9", "dev", None])
def test_an_outdated_agent_joins_and_takes_no_gangs(release: str | None) -> None:
    cluster = ruled()
    cluster.submit("a")
    joining = NodeJoined(node=node(release=release))

    decided = cluster.give(joining)

    kinds = [event for event in decided if isinstance(event, NodeAdmitted | NodeCordoned)]
    assert [event.type for event in kinds] == ["node.admitted", "node.cordoned"]
    cordoned = only(decided, NodeCordoned)
    assert (cordoned.reason, cordoned.oldest_accepted) == ("outdated", OLDEST)
    assert not cordoned.move_jobs
    for _ in range(3):
        cluster.tick(60)
        assert cluster.give(joining) == []
    assert len(every([decision.event for decision, _ in cluster.log], NodeCordoned)) == 1
    assert cluster.job("a").gang is None
    checked(cluster)


@pytest.mark.parametrize("release", ["0.3.0", "0.3.1", "0.10.0", "1.0"])
def test_agents_of_accepted_and_of_later_releases_take_gangs(release: str) -> None:
    cluster = ruled()
    cluster.give(NodeJoined(node=node(release=release)))
    assert started_jobs(cluster.submit("a")) == ["a"]


def test_without_an_oldest_release_all_agents_take_gangs() -> None:
    cluster = Cluster(node(release=None))
    assert started_jobs(cluster.submit("a")) == ["a"]


def test_an_upgrade_of_the_scheduler_cordons_once_and_stops_no_gang() -> None:
    cluster = Cluster(node(gpus=2, release="0.2.0"), node("n2", release="0.3.0"))
    cluster.run("a", gpus=4)

    decided = upgraded(cluster)

    assert [(event.node_id, event.reason) for event in every(decided, NodeCordoned)] == [
        ("n1", "outdated")
    ]
    for _ in range(5):
        assert cluster.tick(3600) == []
    assert cluster.job("a").gang is not None
    assert cluster.job("a").gang.stop is None  # type: ignore[union-attr]
    checked(cluster)
    cluster.exit("a")
    assert started_jobs(cluster.submit("b", gpus=4)) == []
    assert started_jobs(cluster.submit("c", gpus=2)) == ["c"]


def test_the_first_decision_after_an_upgrade_starts_no_gang_on_an_outdated_node() -> None:
    """Inputs that waited during the takeover are decided before its first tick."""
    cluster = Cluster(OLD)
    cluster.decider = Scheduler(Limits(oldest_agents=OLDEST))
    decided = cluster.submit("a")
    assert only(decided, NodeCordoned).reason == "outdated"
    assert started_jobs(decided) == []
    checked(cluster)


def test_the_next_upgrade_says_which_release_is_needed_by_then() -> None:
    cluster = Cluster(OLD)
    upgraded(cluster)
    assert only(upgraded(cluster, "0.4.0"), NodeCordoned).oldest_accepted == "0.4.0"
    assert cluster.tick(60) == []


def test_a_rollback_that_accepts_the_agent_lets_gangs_back() -> None:
    cluster = Cluster(OLD)
    upgraded(cluster)
    cluster.submit("a")
    decided = upgraded(cluster, "0.2.0")
    only(decided, NodeAdmitted)
    assert started_jobs(decided) == ["a"]
    checked(cluster)


def test_it_stays_outdated_when_it_recovers_from_a_failure() -> None:
    cluster = ruled()
    cluster.give(NodeJoined(node=OLD))
    cluster.give(FAILED)
    decided = cluster.give(RECOVERED)
    assert only(decided, NodeCordoned).reason == "outdated"
    assert started_jobs(cluster.submit("a")) == []
    checked(cluster)


def test_it_stays_outdated_when_its_failure_overtook_the_join() -> None:
    cluster = ruled()
    cluster.give(FAILED)
    joined = cluster.give(NodeJoined(node=OLD))
    assert [event.reason for event in every(joined, NodeCordoned)] == ["outdated", "failed"]
    cluster.give(RECOVERED)
    assert started_jobs(cluster.submit("a")) == []


def test_one_that_was_forgotten_joins_again_once() -> None:
    cluster = ruled()
    cluster.give(NodeJoined(node=OLD))
    cluster.give(FAILED)
    cluster.now += REMEMBERED + timedelta(seconds=1)
    cluster.give(NodeJoined(node=node("n2", release=OLDEST)))
    assert "n1" not in cluster.state.nodes
    cluster.give(NodeFailed(node_id="n1", incarnation="i1", reason="forgotten"))
    cluster.give(NodeJoined(node=node(incarnation="i1.1", release="0.2.9")))
    said = len(cluster.log)
    cluster.tick(60)
    assert len(cluster.log) == said
    assert cluster.state.nodes["n1"].down is None
    assert not cluster.state.nodes["n1"].schedulable


def test_the_end_of_a_drain_lets_no_gangs_on_an_outdated_node() -> None:
    cluster = ruled()
    cluster.give(NodeJoined(node=OLD))
    cluster.submit("a")
    for on in (True, False):
        assert drain(cluster, on=on)
        cluster.tick(60)
        assert cluster.job("a").gang is None
        checked(cluster)


def test_a_drain_moves_gangs_off_an_outdated_node() -> None:
    cluster = Cluster(node(gpus=1, release="0.2.0"), node("n2", gpus=1, release="0.3.0"))
    cluster.run("a")
    cluster.run("b")
    cluster.exit("b" if cluster.job("a").gang.nodes[0].node_id == "n1" else "a")  # type: ignore[union-attr]
    (job_id,) = cluster.state.live
    upgraded(cluster)
    drain(cluster, on=True)
    stopped = only(cluster.commit(job_id, 5) + cluster.tick(60), GangStopping)
    assert stopped.reason is StopReason.DRAIN


def test_a_node_that_leaves_lets_its_gangs_save_first() -> None:
    cluster = Cluster(OLD)
    cluster.run("a")
    upgraded(cluster)
    decided = cluster.leave("n1")
    assert only(decided, NodeCordoned).reason == "leaving"
    assert only(decided, GangStopping).reason is StopReason.DRAIN
    cluster.exit("a", ExitReason.STOPPED)
    checked(cluster)


@pytest.mark.parametrize("drained", [False, True])
def test_an_agent_that_reloads_with_an_accepted_release_takes_gangs(drained: bool) -> None:
    cluster = ruled()
    cluster.give(NodeJoined(node=OLD))
    cluster.submit("a")
    if drained:
        drain(cluster, on=True)
    decided = cluster.give(NodeJoined(node=node(release=OLDEST)))
    assert started_jobs(decided) == ([] if drained else ["a"])
    if drained:
        decided = drain(cluster, on=False)
    assert started_jobs(decided) == ["a"] if drained else cluster.job("a").gang is not None
    checked(cluster)


def test_a_reload_while_the_node_counts_as_failed_is_noted() -> None:
    """Else it would be outdated once it recovers, by the release that it had before."""
    cluster = ruled()
    cluster.give(NodeJoined(node=OLD))
    cluster.give(FAILED)
    cluster.submit("a")
    decided = cluster.give(NodeJoined(node=node(release=OLDEST)))
    assert [event.reason for event in every(decided, NodeCordoned)] == ["failed"]
    assert cluster.give(NodeJoined(node=node(release=OLDEST))) == []
    assert started_jobs(cluster.give(RECOVERED)) == ["a"]
    checked(cluster)
