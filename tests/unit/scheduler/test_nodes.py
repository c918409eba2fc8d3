"""Nodes: joining, failing, recovering, leaving and draining, in any order of topics."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gangline_scheduler.core.snapshot import fingerprint
from gangline_schemas.events.faults import FailureCause, NodeFailed, NodeLeft, NodeRecovered
from gangline_schemas.events.quota import DrainAdmitted
from gangline_schemas.events.scheduling import (
    GangAllocated,
    JobWaiting,
    NodeAdmitted,
    NodeCordoned,
    NodeUncordoned,
)
from gangline_schemas.events.workers import NodeJoined
from gangline_schemas.memory import REMEMBERED
from support.builders.deciding import only
from support.builders.scheduler import Cluster, node, started_jobs

FAILED = NodeFailed(node_id="n1", incarnation="i1", reason="silent")
RECOVERED = NodeRecovered(node_id="n1", incarnation="i1", was="failed")


def drain(cluster: Cluster, *, on: bool = True) -> list[object]:
    return list(cluster.give(DrainAdmitted(node_id="n1", drain=on, user="ada")))


def test_a_waiting_job_starts_when_a_node_joins() -> None:
    cluster = Cluster()
    cluster.submit("a")

    decided = cluster.give(NodeJoined(node=node()))

    assert only(decided, NodeAdmitted).node.node_id == "n1"
    assert started_jobs(decided) == ["a"]
    assert cluster.give(NodeJoined(node=node())) == []


def test_a_new_incarnation_supersedes_the_old_one_for_good() -> None:
    cluster = Cluster(node())

    decided = cluster.give(NodeJoined(node=node(incarnation="i2")))

    assert only(decided, NodeCordoned).reason == "superseded"
    assert only(decided, NodeAdmitted).node.incarnation == "i2"
    assert cluster.give(NodeJoined(node=node(incarnation="i1"))) == []
    assert cluster.give(FAILED) == []


def test_gpus_of_a_restarted_agent_stay_busy_until_their_gang_is_released() -> None:
    cluster = Cluster(node(gpus=1))
    cluster.run("a")
    cluster.give(NodeJoined(node=node(gpus=1, incarnation="i2")))

    assert started_jobs(cluster.submit("b")) == []
    again = only(cluster.fail("a", cause=FailureCause.NODE, avoid=("n1",)), GangAllocated)
    assert again.nodes[0].incarnation == "i2"


def test_a_failed_node_takes_no_gangs_until_it_recovers() -> None:
    cluster = Cluster(node())
    assert only(cluster.give(FAILED), NodeCordoned).reason == "failed"
    assert cluster.give(FAILED) == []
    assert cluster.give(NodeJoined(node=node())) == []

    assert started_jobs(cluster.submit("a")) == []
    assert started_jobs(cluster.give(RECOVERED)) == ["a"]


def test_a_failure_that_overtook_the_join_still_counts() -> None:
    cluster = Cluster()
    cluster.give(FAILED)
    cluster.give(NodeJoined(node=node()))

    assert started_jobs(cluster.submit("a")) == []
    assert started_jobs(cluster.give(RECOVERED)) == ["a"]


def test_a_recovery_that_overtook_the_join_clears_the_failure() -> None:
    cluster = Cluster()
    cluster.give(FAILED)
    cluster.give(RECOVERED)
    cluster.give(NodeJoined(node=node()))

    assert started_jobs(cluster.submit("a")) == ["a"]


def test_after_a_node_failure_the_gang_keeps_away_until_the_node_is_admitted_anew() -> None:
    cluster = Cluster(node())
    cluster.run("a")

    decided = cluster.fail("a", cause=FailureCause.NODE, avoid=("n1",))
    cluster.give(FAILED)
    back = cluster.give(RECOVERED)

    assert "without n1" in only(decided, JobWaiting).message
    assert started_jobs(back) == ["a"]


def test_a_drained_node_keeps_its_gangs_and_takes_no_more() -> None:
    cluster = Cluster(node(gpus=2))
    cluster.run("a")

    drain(cluster)

    assert drain(cluster) == []
    assert cluster.job("a").gang is not None
    assert started_jobs(cluster.submit("b")) == []
    decided = drain(cluster, on=False)
    only(decided, NodeUncordoned)  # type: ignore[arg-type]
    assert started_jobs(decided) == ["b"]  # type: ignore[arg-type]


def test_a_drain_outlives_the_agents_restart_and_the_nodes_failure() -> None:
    cluster = Cluster(node())
    drain(cluster)
    cluster.give(NodeJoined(node=node(incarnation="i2")))
    cluster.give(NodeFailed(node_id="n1", incarnation="i2", reason="silent"))
    cluster.give(NodeRecovered(node_id="n1", incarnation="i2", was="failed"))

    assert started_jobs(cluster.submit("a")) == []


def test_reports_about_unknown_nodes_are_survived() -> None:
    cluster = Cluster()

    assert cluster.leave("n9") == []
    assert cluster.give(RECOVERED) == []
    assert drain(cluster) == []


def test_of_nodes_that_left_the_newest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines of a cloud come and go, each under a name of its own."""
    monkeypatch.setattr("gangline_scheduler.core.evolve.nodes.LEFT_NODES_KEPT", 2)
    cluster = Cluster(node("stays"))
    for number in range(5):
        cluster.give(NodeJoined(node=node(f"spot-{number}")))
    for number in (3, 0, 1, 4):
        cluster.leave(f"spot-{number}")
        cluster.give(NodeLeft(node_id=f"spot-{number}", incarnation="i1"))

    assert set(cluster.state.nodes) == {"stays", "spot-2", "spot-1", "spot-4"}
    cluster.give(NodeJoined(node=node("spot-3", incarnation="i2")))
    cluster.give(NodeJoined(node=node("spot-4", incarnation="i2")))
    for name in ("spot-2", "spot-3"):
        cluster.leave(name, incarnation=cluster.state.nodes[name].info.incarnation)
    assert set(cluster.state.nodes) == {"stays", "spot-4", "spot-2", "spot-3"}


def test_a_node_that_left_is_remembered_while_its_gang_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangline_scheduler.core.evolve.nodes.LEFT_NODES_KEPT", 0)
    cluster = Cluster(node(gpus=1))
    cluster.run("a")
    cluster.leave("n1")

    assert set(cluster.state.nodes) == {"n1"}
    cluster.give(NodeJoined(node=node("n2")))
    cluster.fail("a", cause=FailureCause.NODE, avoid=("n1",))
    cluster.leave("n2")
    assert set(cluster.state.nodes) == {"n2"}


@pytest.mark.parametrize("how", ["failed", "left"])
def test_a_node_that_went_is_forgotten_after_the_time_of_all_services(how: str) -> None:
    cluster = Cluster(node("n1"), node("n2"))
    if how == "failed":
        cluster.give(FAILED)
    else:
        cluster.leave("n1")
        cluster.give(NodeLeft(node_id="n1", incarnation="i1"))
    cluster.now += REMEMBERED
    cluster.give(NodeJoined(node=node("n3")))
    assert set(cluster.state.nodes) == {"n1", "n2", "n3"}
    cluster.now += timedelta(seconds=1)
    cluster.give(NodeJoined(node=node("n4")))
    assert set(cluster.state.nodes) == {"n2", "n3", "n4"}
    assert not cluster.state.failed
    assert not cluster.state.left


def test_a_node_that_left_and_then_failed_is_forgotten_once() -> None:
    cluster = Cluster(node("n1"), node("n2"))
    cluster.leave("n1")
    cluster.give(FAILED)
    assert set(cluster.state.failed) == {"n1"}
    assert not cluster.state.left
    cluster.now += REMEMBERED + timedelta(seconds=1)
    cluster.give(NodeJoined(node=node("n3")))
    assert set(cluster.state.nodes) == {"n2", "n3"}


def test_a_failed_node_on_which_a_gang_still_counts_is_forgotten_after_it() -> None:
    cluster = Cluster(node("n1"))
    cluster.run("a")
    cluster.give(FAILED)
    cluster.now += REMEMBERED + timedelta(seconds=1)
    cluster.give(NodeJoined(node=node("n2")))
    assert set(cluster.state.failed) == {"n1"}
    assert fingerprint(cluster.replayed()) == fingerprint(cluster.state)
    cluster.fail("a", cause=FailureCause.NODE, avoid=("n1",))
    cluster.give(NodeJoined(node=node("n3")))
    assert set(cluster.state.nodes) == {"n2", "n3"}
    assert not cluster.state.failed


def test_a_node_that_is_forgotten_joins_again_as_another_incarnation() -> None:
    cluster = Cluster(node("n1"))
    cluster.give(FAILED)
    cluster.now += REMEMBERED + timedelta(seconds=1)
    cluster.give(NodeJoined(node=node("n2")))
    cluster.give(NodeFailed(node_id="n1", incarnation="i1", reason="forgotten"))
    cluster.give(NodeJoined(node=node("n1", incarnation="i1.1")))
    assert cluster.state.nodes["n1"].schedulable
