"""When a checkpoint counts, and when it never will."""

from __future__ import annotations

import pytest

from gangline_checkpoints.core.model import (
    Away,
    Corrupt,
    Delete,
    Refused,
    Removed,
    Verified,
    Verify,
)
from gangline_checkpoints.core.outcomes import VERIFY_TRIES
from gangline_checkpoints.core.parts import MAX_OPEN
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.state import CheckpointState
from gangline_schemas.base import Event
from gangline_schemas.events.checkpoints import (
    AttemptEnded,
    AttemptNoted,
    CheckpointAbandoned,
    CheckpointBegun,
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointWritten,
    EffectDeferred,
    ObjectsDeleted,
)
from gangline_schemas.events.scheduling import ReleaseReason
from support.builders.checkpoints import (
    JOB,
    PREFIX,
    allocated,
    checkpoint_run,
    commit,
    could_not_start,
    ended,
    part,
    released,
)
from support.harnesses.decider_run import DeciderRun

VERIFY = f"verify:{JOB}:1:20:0"
DELETE = f"delete:{JOB}:1:20:0"
FINE = Verified(size_bytes=100, objects=5, verify_s=0.1)


def running(attempt: int = 1) -> DeciderRun[CheckpointState, Reports]:
    run = checkpoint_run()
    run.feed(allocated(attempt))
    return run


def kinds(events: list[Event]) -> list[type[Event]]:
    return [type(event) for event in events]


def test_with_all_ranks_there_it_is_verified_then_committed() -> None:
    run = running()
    [begun] = run.feed(part(0))
    assert begun == CheckpointBegun(job_id=JOB, attempt=1, step=20, partition=0, offset=2)
    assert run.effects() == {}
    assert kinds(run.feed(part(1, metrics={"loss": 2.5}))) == [CheckpointWritten]
    effect = run.effects()[VERIFY]
    assert isinstance(effect, Verify)
    assert (effect.prefix, effect.world_size) == (PREFIX, 2)
    [event] = run.done(VERIFY, FINE)
    assert isinstance(event, CheckpointCommitted)
    assert event.checkpoint.commit_key == (f"{PREFIX}/attempt-0001/step-0000000020/COMMIT.json")
    assert event.metrics == {"loss": 2.5}
    assert run.effects() == {}


def test_a_duplicate_leads_to_nothing() -> None:
    run = running()
    run.feed(part(0))
    assert run.feed(part(0)) == []
    run.feed(part(1))
    assert run.feed(part(1)) == []
    run.done(VERIFY, FINE)
    assert run.done(VERIFY, FINE) == []
    assert run.feed(part(0)) == []
    assert run.feed(allocated()) == []


def test_parts_that_come_before_the_allocation_are_not_lost() -> None:
    run = checkpoint_run()
    run.feed(part(0))
    run.feed(part(1))
    assert run.effects() == {}
    run.take_over()
    assert kinds(run.feed(allocated())) == [AttemptNoted, CheckpointWritten]
    assert kinds(run.done(VERIFY, FINE)) == [CheckpointCommitted]


def test_parts_of_an_attempt_that_never_comes_are_forgotten() -> None:
    run = checkpoint_run()
    run.feed(part(0))
    assert run.tick(599) == []
    assert kinds(run.tick(1)) == [CheckpointAbandoned]
    assert run.state.jobs == {}
    assert run.effects() == {}


def test_a_new_attempt_abandons_what_the_old_one_left_and_deletes_it() -> None:
    run = running()
    run.feed(part(0))
    run.feed(released())
    assert kinds(run.feed(allocated(2))) == [AttemptNoted, CheckpointAbandoned]
    effect = run.effects()[DELETE]
    assert isinstance(effect, Delete)
    assert kinds(run.done(DELETE, Removed(2))) == [ObjectsDeleted]
    assert run.effects() == {}


def test_a_late_part_of_an_older_attempt_is_deleted_once() -> None:
    run = running(2)
    late = part(1, attempt=1)
    assert kinds(run.feed(late)) == [CheckpointAbandoned]
    assert DELETE in run.effects()
    assert run.feed(late) == []
    assert kinds(run.done(DELETE, Removed(1))) == [ObjectsDeleted]
    assert run.feed(late) == []
    # another rank's part comes later still: its objects must go too
    assert kinds(run.feed(part(0, attempt=1))) == [CheckpointAbandoned]
    assert DELETE in run.effects()


def test_a_part_that_comes_while_its_step_is_deleted_is_deleted_too() -> None:
    run = running(2)
    run.feed(part(1, attempt=1))
    assert run.feed(part(0, attempt=1)) == []
    assert list(run.effects()) == [DELETE]
    assert kinds(run.done(DELETE, Removed(1))) == [CheckpointAbandoned]
    assert list(run.effects()) == [f"delete:{JOB}:1:20:1"]
    assert run.feed(part(0, attempt=1)) == []
    assert kinds(run.done(f"delete:{JOB}:1:20:1", Removed(1))) == [ObjectsDeleted]


def test_a_verification_that_ends_after_a_newer_attempt_began_commits_nothing() -> None:
    run = running()
    run.feed(part(0))
    run.feed(part(1))
    run.feed(released())
    assert kinds(run.feed(allocated(2))) == [AttemptNoted]
    # it is still at work and may put a commit record: its objects are deleted after it
    assert list(run.effects()) == [VERIFY]
    run.take_over()
    assert list(run.effects()) == [VERIFY]
    assert kinds(run.done(VERIFY, FINE)) == [CheckpointAbandoned]
    assert list(run.effects()) == [DELETE]


def test_a_released_attempt_still_commits_what_it_wrote_completely() -> None:
    run = running()
    run.feed(part(0))
    assert run.feed(released()) == [AttemptEnded(job_id=JOB, attempt=1, failed=True)]
    run.feed(part(1))
    assert kinds(run.done(VERIFY, FINE)) == [CheckpointCommitted]


def test_an_ended_attempts_incomplete_step_is_given_up_after_a_grace_time() -> None:
    run = running()
    run.feed(part(0))
    run.feed(released(reason=ReleaseReason.FAILED))
    assert run.tick(599) == []
    assert kinds(run.tick(1)) == [CheckpointAbandoned]
    run.done(DELETE, Removed(1))
    run.tick(600)
    run.feed(allocated(job_id="job-2"))
    assert JOB not in run.state.jobs
    assert run.feed(part(1)) == []
    assert run.feed(allocated()) == []


def test_a_job_that_ended_without_a_gang_is_ended_too() -> None:
    run = running()
    run.feed(released(reason=ReleaseReason.PREEMPTED))
    assert run.feed(ended()) == [AttemptEnded(job_id=JOB, attempt=1, final=True)]
    assert run.feed(ended()) == []


def test_commits_of_a_job_come_in_order() -> None:
    run = running()
    for step in (40, 20):
        run.feed(part(0, step))
    run.feed(part(1, 40))
    run.feed(part(1, 20))
    assert list(run.effects()) == [f"verify:{JOB}:1:40:0"]
    committed, older = run.done(f"verify:{JOB}:1:40:0", FINE)
    assert isinstance(committed, CheckpointCommitted)
    assert isinstance(older, CheckpointAbandoned)
    assert older.step == 20
    assert kinds(run.feed(part(0, 10))) == [CheckpointAbandoned]


def test_the_next_complete_step_is_verified_after_the_one_before() -> None:
    run = running()
    for step in (20, 40):
        for rank in (0, 1):
            run.feed(part(rank, step))
    assert list(run.effects()) == [VERIFY]
    run.done(VERIFY, FINE)
    assert list(run.effects()) == [f"verify:{JOB}:1:40:0"]


def test_corrupt_bytes_are_reported_and_the_step_given_up() -> None:
    run = running()
    run.feed(part(0))
    run.feed(part(1))
    corrupted, abandoned = run.done(VERIFY, Corrupt("k", "holds 3 of 4 bytes"))
    assert isinstance(corrupted, CheckpointCorrupted)
    assert corrupted.key == "k"
    assert isinstance(abandoned, CheckpointAbandoned)
    assert list(run.effects()) == [DELETE]


def test_manifests_that_disagree_give_the_step_up() -> None:
    run = running()
    run.feed(part(0))
    run.feed(part(1))
    [event] = run.done(VERIFY, Refused("two slices overlap"))
    assert isinstance(event, CheckpointAbandoned)
    assert event.reason == "two slices overlap"


def test_a_store_that_is_away_is_tried_again_under_a_new_key() -> None:
    run = running()
    run.feed(part(0))
    run.feed(part(1))
    [event] = run.done(VERIFY, Away("no answer"))
    assert isinstance(event, EffectDeferred)
    assert (event.effect, event.tries) == ("verify", 1)
    again = f"verify:{JOB}:1:20:1"
    assert list(run.effects()) == [again]
    assert run.done(VERIFY, Away("no answer")) == []
    run.take_over()
    assert kinds(run.done(again, FINE)) == [CheckpointCommitted]


def test_a_save_that_cannot_be_read_does_not_hold_up_later_ones_for_ever() -> None:
    run = running()
    tries = [f"verify:{JOB}:1:20:{number}" for number in range(VERIFY_TRIES + 1)]
    for rank in (0, 1):
        run.feed(part(rank))
    for key in tries[:-1]:  # no other waits: it is all that the job has
        assert kinds(run.done(key, Away("Input/output error"))) == [EffectDeferred]
    for rank in (0, 1):
        run.feed(part(rank, 30))
    assert kinds(run.done(tries[-1], Away("Input/output error"))) == [CheckpointAbandoned]
    assert kinds(run.done(f"verify:{JOB}:1:30:0", FINE)) == [CheckpointCommitted]


def test_a_deletion_is_tried_again_too() -> None:
    run = running(2)
    run.feed(part(1, attempt=1))
    run.done(DELETE, Away("no answer"))
    assert list(run.effects()) == [f"delete:{JOB}:1:20:1"]


@pytest.mark.parametrize(
    "wrong",
    [
        part(0, folder="teams/other/checkpoints/job-9"),
        part(0, folder=f"{PREFIX}/attempt-0001/step-0000000021"),
        part(0, world_size=3),
        part(5, world_size=6),
    ],
)
@pytest.mark.parametrize("early", [False, True])
def test_a_part_at_a_foreign_key_or_of_another_world_is_refused(
    wrong: Event, *, early: bool
) -> None:
    run = checkpoint_run()
    events = [wrong, allocated()] if early else [allocated(), wrong]
    found = [event for item in events for event in run.feed(item)]
    assert CheckpointAbandoned in kinds(found)
    effects = run.effects()
    assert list(effects) == [DELETE]
    # what is deleted lies where the service says, not where the message says
    assert all(isinstance(item, Delete) and item.prefix == PREFIX for item in effects.values())


def test_steps_that_one_rank_never_finishes_are_bounded() -> None:
    run = running()
    for step in range(1, MAX_OPEN + 5):
        run.feed(part(0, step))
    assert len(run.state.jobs[JOB].open) == MAX_OPEN
    assert len(run.events(CheckpointAbandoned)) == 4


def test_a_new_attempt_commits_beside_what_older_ones_committed() -> None:
    run = running()
    commit(run, 20)
    run.feed(released())
    run.feed(allocated(2))
    assert CheckpointCommitted in kinds(commit(run, 20, attempt=2))


def test_a_checkpoint_that_no_node_can_start_from_is_corrupted() -> None:
    run = running()
    commit(run, 20)
    commit(run, 30)
    run.feed(released(1))
    run.feed(allocated(2))
    key = f"{PREFIX}/attempt-0001/step-0000000030/rank-00000.bin"
    [event] = run.feed(could_not_start(key, attempt=2))
    assert isinstance(event, CheckpointCorrupted)
    assert (event.job_id, event.attempt, event.step, event.key) == (JOB, 1, 30, key)
    assert run.feed(could_not_start(key, attempt=2)) == [], "the next rank says the same"
    assert (
        run.feed(could_not_start(f"{PREFIX}-other/attempt-0001/step-0000000020/x", attempt=2)) == []
    )
