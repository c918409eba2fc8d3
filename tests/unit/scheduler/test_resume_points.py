"""Where the next attempt starts: committed, restored, lost, and taken from another run."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gangline_schemas.base import Event
from gangline_schemas.checkpoint_policy import CheckpointPolicy, Retention
from gangline_schemas.events.checkpoints import CheckpointCorrupted, CheckpointDeleted
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    GangStopping,
    JobStateChanged,
    ReleaseReason,
    StopReason,
)
from gangline_schemas.events.workers import ExitReason
from gangline_schemas.memory import REMEMBERED
from support.builders.deciding import only
from support.builders.scheduler import Cluster, node, point, states


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(node())
    cluster.run("a")
    return cluster


def next_step(cluster: Cluster) -> int | None:
    resume = only(cluster.fail("a"), GangAllocated).resume
    return None if resume is None else resume.step


def corrupt(cluster: Cluster, step: int, attempt: int = 1) -> None:
    cluster.give(
        CheckpointCorrupted(job_id="a", attempt=attempt, step=step, key="k", reason="bits")
    )


def test_starts_from_the_newest_committed_step(cluster: Cluster) -> None:
    cluster.commit("a", 10)
    cluster.commit("a", 20)

    assert cluster.commit("a", 20) == []
    assert cluster.commit("a", 15) == []
    assert next_step(cluster) == 20


def test_a_late_commit_of_the_attempt_before_counts(cluster: Cluster) -> None:
    cluster.commit("a", 10)
    cluster.fail("a")
    cluster.commit("a", 20, attempt=1)

    assert next_step(cluster) == 20


def test_commits_of_still_older_attempts_do_not_count(cluster: Cluster) -> None:
    cluster.fail("a")
    cluster.fail("a")

    assert cluster.commit("a", 10, attempt=1) == []


def test_falls_back_when_the_newest_is_corrupted_or_deleted(cluster: Cluster) -> None:
    for step in (10, 20, 30):
        cluster.commit("a", step)
    corrupt(cluster, 30)
    cluster.give(CheckpointDeleted(job_id="a", attempt=1, step=10, reason="retention"))

    assert next_step(cluster) == 20
    corrupt(cluster, 20)
    assert next_step(cluster) is None


BROKEN = {"reason": ExitReason.LAUNCH_FAILED, "damaged": "a/1/20/rank-00000.bin"}


def test_what_a_rank_found_damaged_is_not_begun_from_before_the_service_says_so_too(
    cluster: Cluster,
) -> None:
    for step in (10, 20):
        cluster.commit("a", step)
    cluster.fail("a")
    cluster.exit("a", **BROKEN)

    assert next_step(cluster) == 10
    corrupt(cluster, 20)
    assert cluster.exit("a", **BROKEN) == []
    assert next_step(cluster) == 10


def test_of_what_an_older_attempt_found_and_of_another_run_the_service_has_the_word(
    cluster: Cluster,
) -> None:
    cluster.commit("a", 20)
    cluster.submit("b", resume_from="a")
    cluster.exit("b", **BROKEN)
    assert cluster.job("b").resume == point("a", 20)

    cluster.fail("a")
    cluster.exit("a", **BROKEN, attempt=1)
    assert next_step(cluster) == 20


def test_a_restore_stops_the_gang_and_starts_from_that_step(cluster: Cluster) -> None:
    for step in (10, 20):
        cluster.commit("a", step)

    asked = cluster.restore("a", 10)
    late = cluster.commit("a", 30)
    ended = cluster.exit("a", ExitReason.STOPPED)

    assert only(asked, GangStopping).reason is StopReason.RESTORE
    assert late == []
    assert only(ended, GangReleased).reason is ReleaseReason.RESTARTING
    resume = only(ended, GangAllocated).resume
    assert resume is not None
    assert resume.step == 10


def test_a_restore_reaches_what_is_kept_for_good() -> None:
    cluster = Cluster(node())
    cluster.run("a", checkpoint=CheckpointPolicy(keep=Retention(latest=1, every=10)))
    for step in range(10, 1000, 10):
        cluster.commit("a", step)

    assert only(cluster.restore("a", 10), GangStopping).reason is StopReason.RESTORE


def test_a_restore_to_an_unknown_step_changes_nothing(cluster: Cluster) -> None:
    cluster.commit("a", 10)

    assert cluster.restore("a", 11) == []


def test_a_repeated_restore_changes_nothing(cluster: Cluster) -> None:
    cluster.commit("a", 10)
    cluster.restore("a", 10)
    assert cluster.restore("a", 10) == []
    cluster.exit("a", ExitReason.STOPPED)

    assert cluster.restore("a", 10) == []


def test_the_restored_attempt_commits_again(cluster: Cluster) -> None:
    for step in (10, 20):
        cluster.commit("a", step)
    cluster.restore("a", 10)
    cluster.exit("a", ExitReason.STOPPED)
    cluster.commit("a", 15, attempt=2)

    assert next_step(cluster) == 15


def test_resume_never_starts_from_the_beginning() -> None:
    cluster = Cluster(node())
    cluster.run("a", checkpoint={"resume": "never"})
    cluster.commit("a", 10)

    assert next_step(cluster) is None


@pytest.mark.parametrize("ended", [True, False])
def test_resume_from_takes_the_newest_checkpoint_of_the_other_run(
    cluster: Cluster, *, ended: bool
) -> None:
    cluster.commit("a", 10)
    cluster.commit("a", 20)
    if ended:
        cluster.exit("a")

    allocated = only(cluster.submit("b", resume_from="a"), GangAllocated)

    assert allocated.resume == point("a", 20)


def test_resume_from_with_a_step_takes_that_one(cluster: Cluster) -> None:
    cluster.commit("a", 10)
    cluster.commit("a", 20)

    chosen = cluster.submit("b", resume_from="a", checkpoint={"resume": "10"})
    unknown = cluster.submit("c", resume_from="a", checkpoint={"resume": "11"})

    assert only(chosen, GangAllocated).resume == point("a", 10)
    assert states(unknown) == ["pending", "failed"]


def registered(cluster: Cluster, step: int) -> list[Event]:
    """A job starts from a registered checkpoint of run a."""
    chosen = {"resume_from": "a", "checkpoint": {"resume": str(step)}}
    return cluster.submit("b", start=point("a", step), **chosen)


def test_a_registered_checkpoint_is_a_start_though_its_run_is_forgotten(cluster: Cluster) -> None:
    cluster.commit("a", 10)
    cluster.exit("a")
    cluster.now += REMEMBERED + timedelta(seconds=1)
    cluster.run("later")
    cluster.exit("later")
    assert "a" not in cluster.state.ended
    assert only(registered(cluster, 10), GangAllocated).resume == point("a", 10)


def test_a_registered_checkpoint_is_a_start_though_newer_ones_of_its_run_are_known(
    cluster: Cluster,
) -> None:
    for step in range(10, 110, 10):
        cluster.commit("a", step)
    cluster.exit("a")
    assert only(registered(cluster, 10), GangAllocated).resume == point("a", 10)


def test_a_registered_checkpoint_that_its_run_has_lost_is_no_start(cluster: Cluster) -> None:
    cluster.commit("a", 10)
    cluster.commit("a", 20)
    cluster.exit("a")
    cluster.give(CheckpointDeleted(job_id="a", attempt=1, step=10, reason="retention"))
    failed = registered(cluster, 10)[-1]
    assert isinstance(failed, JobStateChanged)
    assert failed.reason == "resume_from: run a has no committed checkpoint of step 10"


def test_resume_from_without_a_checkpoint_fails_with_the_reason(cluster: Cluster) -> None:
    decided = cluster.submit("b", resume_from="a")

    assert states(decided) == ["pending", "failed"]
    assert decided[-1] == JobStateChanged.model_validate(
        decided[-1].data() | {"reason": "resume_from: run a has no committed checkpoint"}
    )


def test_an_ended_run_is_begun_from_its_last_checkpoint_though_it_came_after_the_end(
    cluster: Cluster,
) -> None:
    cluster.commit("a", 10)
    cluster.exit("a")
    cluster.commit("a", 20)
    cluster.give(CheckpointDeleted(job_id="a", attempt=1, step=10, reason="retention"))

    assert cluster.commit("a", 20) == []
    assert only(cluster.submit("b", resume_from="a"), GangAllocated).resume == point("a", 20)


def test_of_an_ended_run_a_deleted_checkpoint_is_no_beginning(cluster: Cluster) -> None:
    cluster.commit("a", 10)
    cluster.exit("a")
    cluster.give(CheckpointDeleted(job_id="a", attempt=1, step=10, reason="retention"))

    assert states(cluster.submit("b", resume_from="a")) == ["pending", "failed"]


def test_who_waits_to_begin_from_a_run_follows_its_newest_checkpoint(cluster: Cluster) -> None:
    cluster.commit("a", 10)
    cluster.submit("full", gpus=7)
    cluster.submit("b", resume_from="a", gpus=8)
    cluster.commit("a", 20)
    cluster.give(CheckpointDeleted(job_id="a", attempt=1, step=10, reason="retention"))

    assert cluster.state.jobs["b"].resume == point("a", 20)
    gone = cluster.give(CheckpointCorrupted(job_id="a", attempt=1, step=20, key="k", reason="r"))
    assert states(gone) == ["failed"]


@pytest.mark.parametrize("saved", [False, True])
def test_whose_beginning_is_lost_while_it_runs_never_begins_from_zero(
    cluster: Cluster, *, saved: bool
) -> None:
    cluster.commit("a", 10)
    cluster.submit("b", resume_from="a", checkpoint={"resume": "10"})
    cluster.give(CheckpointDeleted(job_id="a", attempt=1, step=10, reason="retention"))
    assert cluster.state.jobs["b"].gang is not None
    if saved:
        cluster.commit("b", 15)

    decided = cluster.fail("b")

    if saved:
        assert only(decided, GangAllocated).resume == point("b", 15)
    else:
        assert states(decided) == ["pending", "failed"]
