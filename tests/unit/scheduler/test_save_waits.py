"""A gang that failed while its newest checkpoint was on its way to the store."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gangline_schemas.base import Event
from gangline_schemas.checkpoint_policy import CheckpointPolicy
from gangline_schemas.events.checkpoints import CheckpointAbandoned, CheckpointSaved
from gangline_schemas.events.faults import FailureCause, NodeFailed
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    GangSaved,
    GangStopping,
    JobStateChanged,
    ReleaseReason,
    StopReason,
)
from gangline_schemas.events.workers import ExitReason, NodeJoined, SampleRange
from support.builders.deciding import every, only
from support.builders.scheduler import Cluster, node, states, stopped_for


def saved(cluster: Cluster, step: int, *, after_s: float = 0.0, attempt: int = 1) -> list[Event]:
    cluster.tick(after_s)
    return cluster.give(CheckpointSaved(job_id="a", attempt=attempt, step=step, world_size=2))


@pytest.fixture
def cluster() -> Cluster:
    """Step 10 is in the store since 60 s; step 20 on the nodes."""
    cluster = Cluster(node("n1", 1), node("n2", 1))
    cluster.run("a", 2)
    cluster.commit("a", 10)
    saved(cluster, 20, after_s=60)
    return cluster


def resumed(events: list[Event]) -> int | None:
    start = only(events, GangAllocated).resume
    return None if start is None else start.step


def test_it_keeps_its_gpus_until_the_checkpoint_is_in_the_store(cluster: Cluster) -> None:
    failed = cluster.fail("a", avoid=("n1",), left_out=(SampleRange(first=0, count=2),))
    waiting = only(failed, GangStopping)

    assert (waiting.reason, every(failed, GangReleased)) == (StopReason.FAILED, [])
    assert (waiting.deadline - cluster.now).total_seconds() == 60
    assert "checkpoint of step 20 is on its way" in only(failed, JobStateChanged).reason
    assert states(failed) == ["checkpointing"]

    ended = cluster.commit("a", 20)
    released = only(ended, GangReleased)
    assert (released.reason, released.avoid_nodes) == (ReleaseReason.RESTARTING, ("n1",))
    assert released.left_out == (SampleRange(first=0, count=2),)
    assert states(ended) == ["pending", "scheduled"]
    assert resumed(ended) == 20


def test_the_ends_of_its_ranks_do_not_end_the_wait(cluster: Cluster) -> None:
    cluster.fail("a")
    assert every(cluster.exit("a", ExitReason.STOPPED), GangReleased) == []
    assert resumed(cluster.commit("a", 20)) == 20


def test_a_verdict_that_comes_twice_counts_once(cluster: Cluster) -> None:
    cluster.fail("a")
    assert cluster.fail("a") == []


def test_it_waits_no_longer_than_the_work_took(cluster: Cluster) -> None:
    cluster.fail("a")
    assert every(cluster.tick(60), GangReleased) == []
    assert resumed(cluster.tick(1)) == 10


def test_a_wait_by_a_clock_that_was_hours_ahead_ends_by_the_right_one(cluster: Cluster) -> None:
    failed = cluster.fail("a", left_out=(SampleRange(first=0, count=2),))
    cluster.now -= timedelta(hours=5)

    again = only(cluster.tick(1), GangStopping)
    assert again.verdict == only(failed, GangStopping).verdict
    assert every(cluster.tick(600), GangReleased) == []
    assert resumed(cluster.tick(1)) == 10


@pytest.mark.parametrize(("worked_s", "wait_s"), [(30, 30), (3600, 600)])
def test_a_first_save_is_waited_for_as_long_as_the_gang_worked_or_as_is_set(
    worked_s: float, wait_s: float
) -> None:
    cluster = Cluster(node("n1", 2))
    cluster.run("a", 2)
    saved(cluster, 20, after_s=worked_s)
    deadline = only(cluster.fail("a"), GangStopping).deadline
    assert (deadline - cluster.now).total_seconds() == wait_s
    assert resumed(cluster.tick(wait_s + 1)) is None


def test_an_older_commit_does_not_end_the_wait(cluster: Cluster) -> None:
    saved(cluster, 30, after_s=60)
    cluster.fail("a")
    assert every(cluster.commit("a", 20), GangReleased) == []
    assert resumed(cluster.commit("a", 30)) == 30


def test_what_is_committed_already_is_not_waited_for(cluster: Cluster) -> None:
    cluster.commit("a", 20)
    assert resumed(cluster.fail("a")) == 20


def test_what_an_earlier_attempt_saved_is_not_waited_for(cluster: Cluster) -> None:
    cluster.fail("a")
    cluster.tick(61)
    cluster.start("a")
    assert every(saved(cluster, 20), GangSaved) == []
    assert resumed(cluster.fail("a")) == 10


def test_a_job_that_never_resumes_does_not_wait() -> None:
    cluster = Cluster(node("n1", 2))
    cluster.run("a", 2, checkpoint=CheckpointPolicy(resume="never"))
    saved(cluster, 20, after_s=30)
    assert resumed(cluster.fail("a")) is None


@pytest.mark.parametrize("cause", list(FailureCause))
def test_a_failure_of_a_node_takes_its_part_along(cluster: Cluster, cause: FailureCause) -> None:
    waits = stopped_for(cluster.fail("a", cause=cause), StopReason.FAILED)
    assert waits == ([] if cause is FailureCause.NODE else ["a"])


def test_a_node_that_is_gone_is_not_waited_for(cluster: Cluster) -> None:
    gone = NodeFailed(node_id="n2", incarnation="i1", reason="silent", silent_s=60)
    assert every(cluster.give(gone), GangReleased) == []
    assert only(cluster.fail("a"), GangReleased).reason is ReleaseReason.RESTARTING


def test_nor_is_one_that_goes_meanwhile(cluster: Cluster) -> None:
    cluster.give(NodeJoined(node=node("n3", 2)))
    cluster.fail("a")
    ended = cluster.give(NodeFailed(node_id="n2", incarnation="i1", reason="silent", silent_s=60))
    assert resumed(ended) == 10


def test_nor_is_one_whose_agent_is_another(cluster: Cluster) -> None:
    cluster.fail("a")
    ended = cluster.give(NodeJoined(node=node("n2", 1, incarnation="i2")))
    assert resumed(ended) == 10


def test_a_checkpoint_that_is_given_up_ends_the_wait(cluster: Cluster) -> None:
    cluster.fail("a")
    gone = {"job_id": "a", "attempt": 1, "reason": "its store is full"}
    assert cluster.give(CheckpointAbandoned(**gone, step=19)) == []  # type: ignore[arg-type]
    assert resumed(cluster.give(CheckpointAbandoned(**gone, step=20))) == 10  # type: ignore[arg-type]


def test_a_cancel_ends_the_job_at_once(cluster: Cluster) -> None:
    cluster.fail("a")
    assert states(cluster.cancel("a"))[-1] == "cancelled"


def test_a_restore_starts_again_at_once(cluster: Cluster) -> None:
    cluster.commit("a", 20)
    saved(cluster, 30, after_s=60)
    cluster.fail("a")
    assert resumed(cluster.restore("a", 10)) == 10


def test_its_gpus_are_not_taken_for_free_soon(cluster: Cluster) -> None:
    cluster.fail("a")
    cluster.submit("b", 2, priority=0)
    cluster.tick(1)
    started = every(cluster.commit("a", 20), GangAllocated)
    assert [event.job_id for event in started] == ["a"]


def test_a_successor_knows_what_is_waited_for(cluster: Cluster) -> None:
    cluster.fail("a", avoid=("n1",))
    cluster.state = cluster.replayed()
    assert resumed(cluster.commit("a", 20)) == 20
