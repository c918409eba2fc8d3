"""Which checkpoints are validated, what becomes promoted, and why the rest does not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import pytest

from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.state import CheckpointState
from gangline_schemas.base import Event
from gangline_schemas.checkpoint import checkpoint_prefix
from gangline_schemas.checkpoint_policy import Retention
from gangline_schemas.events.checkpoints import (
    CheckpointDeleted,
    CheckpointPinChanged,
    CheckpointPromoted,
    PromotionRefused,
    PromotionRequested,
)
from gangline_schemas.events.quota import JobRejected, PinAdmitted
from gangline_schemas.events.scheduling import GangAllocated, ReleaseReason
from gangline_schemas.events.workers import WorkerExited
from gangline_schemas.job import JobSpec, JobState
from gangsim.checkpoint_log import log_violations
from support.builders.checkpoints import (
    JOB,
    PREFIX,
    allocated,
    checkpoint_run,
    commit,
    could_not_start,
    ended,
    part,
    ref,
    released,
    resumes,
)
from support.harnesses.decider_run import DeciderRun

RUN = "validate-it"
LATEST = Retention(latest=1)
Run = DeciderRun[CheckpointState, Reports]


def running(promote: Literal["off", "final"] | int = "off", keep: Retention = LATEST) -> Run:
    run = checkpoint_run()
    run.feed(allocated(keep=keep, promote=promote))
    return run


def asked(run: Run) -> list[PromotionRequested]:
    return [event for event in run.events(PromotionRequested) if type(event) is PromotionRequested]


def steps(run: Run) -> list[int]:
    return [kept.step for kept in run.state.jobs[JOB].kept]


def validating(step: int, run_id: str = RUN) -> GangAllocated:
    return allocated(job_id=run_id, resume=ref(1, step), validates=True)


def validated(
    run: Run, step: int, state: JobState = JobState.SUCCEEDED, reason: str = "", run_id: str = RUN
) -> list[Event]:
    """A run starts from the step, and ends so."""
    run.feed(validating(step, run_id))
    return [
        *run.feed(released(reason=ReleaseReason(state.value), job_id=run_id)),
        *run.feed(ended(run_id, state, reason)),
    ]


def damaged(step: int) -> WorkerExited:
    return could_not_start(f"{checkpoint_prefix(PREFIX, 1, step)}/rank-00000.bin")


def promoted(step: int, run_id: str = RUN) -> CheckpointPromoted:
    place = {"world_size": 2, "commit_key": ref(1, step).commit_key}
    return CheckpointPromoted(job_id=JOB, attempt=1, step=step, run=run_id, **place)  # type: ignore[arg-type]


def test_each_nth_that_the_scheduler_knows_and_the_last_are_to_be_validated() -> None:
    run = running(promote=2)
    for step in (10, 20, 30, 40, 50):
        commit(run, step)
    assert [event.step for event in asked(run)] == [20, 40]
    run.feed(released(reason=ReleaseReason.SUCCEEDED))
    run.feed(ended(state=JobState.SUCCEEDED))
    assert [event.step for event in asked(run)] == [20, 40, 50]


def test_none_is_validated_before_the_scheduler_could_start_from_it() -> None:
    run = running(promote=1)
    commit(run, 10, heard=False)
    assert asked(run) == []
    run.feed(resumes(1, 10))
    assert [event.step for event in asked(run)] == [10]


def test_of_a_job_that_ends_well_the_last_is_validated_however_late_it_is_committed() -> None:
    run = running(promote="final")
    commit(run, 10)
    for rank in (0, 1):
        run.feed(part(rank, 20))
    run.feed(released(reason=ReleaseReason.SUCCEEDED))
    assert asked(run) == []
    commit(run, 20)
    assert [event.step for event in asked(run)] == [20]


@pytest.mark.parametrize("reason", [ReleaseReason.FAILED, ReleaseReason.CANCELLED])
def test_of_a_job_that_ends_otherwise_nothing_is_validated(reason: ReleaseReason) -> None:
    run = running(promote="final")
    commit(run, 10)
    run.feed(released(reason=reason))
    assert asked(run) == []


def test_the_run_is_the_same_program_on_as_many_gpus_for_an_hour_at_most() -> None:
    run = running(promote=1)
    commit(run, 10)
    [event] = asked(run)
    again = checkpoint_run()
    again.feed(allocated(keep=LATEST, promote=1))
    commit(again, 10)
    assert asked(again) == [event]
    spec = JobSpec.model_validate(event.spec.model_dump())
    assert (spec.resume_from, spec.checkpoint.resume, spec.validates) == (JOB, "10", True)
    assert (spec.name, spec.run, spec.resources.gpus) == ("validate-train", "true", 2)
    assert (spec.max_runtime_hours, spec.checkpoint.promote) == (1.0, "off")


def test_what_its_run_found_right_is_promoted_and_kept_until_a_newer_one_is() -> None:
    run = running()
    commit(run, 10)
    assert promoted(10) in validated(run, 10)
    for step in (20, 30, 40):
        commit(run, step)
    assert steps(run) == [10, 40]
    again = validated(run, 40, run_id="validate-40")
    assert promoted(40, "validate-40") in again
    assert steps(run) == [40]
    assert log_violations(decision.event for decision, _ in run.log) == []
    run.take_over()


def test_a_run_that_failed_refuses_with_its_reason_and_attempts_still_start_there() -> None:
    run = running()
    commit(run, 10)
    reason = "rank 0 on n1 exited with code 1: error: the evaluation loss is 9, recorded was 2"
    refused = PromotionRefused(job_id=JOB, attempt=1, step=10, run=RUN, reason=reason)
    assert refused in validated(run, 10, JobState.FAILED, reason)
    [kept] = run.state.jobs[JOB].kept
    assert kept.healthy
    assert not kept.promoted


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.FAILED])
def test_a_run_that_never_began_refuses_too_and_lets_go(state: JobState) -> None:
    run = running(promote=1)
    commit(run, 10)
    commit(run, 20)
    [first, _] = asked(run)
    assert steps(run) == [10, 20]
    [refused, gone] = run.feed(ended(first.run, state))
    assert isinstance(refused, PromotionRefused)
    assert refused.reason == f"its run was {state.value}"
    assert isinstance(gone, CheckpointDeleted)
    assert steps(run) == [20]


def test_a_run_that_quota_rejects_refuses() -> None:
    run = running(promote=1)
    commit(run, 10)
    [event] = asked(run)
    at = datetime(2026, 11, 22, tzinfo=UTC)
    [refused] = run.feed(JobRejected(job_id=event.run, reason="too many GPUs", submitted_at=at))
    assert isinstance(refused, PromotionRefused)
    assert refused.reason == "its run was rejected: too many GPUs"
    assert run.feed(JobRejected(job_id="other", reason="", submitted_at=at)) == []


def test_what_is_validated_is_held_until_that_is_decided() -> None:
    run = running()
    commit(run, 10)
    run.feed(validating(10))
    for step in (20, 30):
        commit(run, step)
    run.feed(released(reason=ReleaseReason.FAILED, job_id=RUN))
    assert steps(run) == [10, 30]
    run.feed(ended(RUN, JobState.FAILED))
    assert steps(run) == [30]


def test_a_run_that_trained_on_has_validated_nothing() -> None:
    run = running()
    commit(run, 10)
    run.feed(validating(10))
    commit(run, 15, job_id=RUN)
    run.feed(released(reason=ReleaseReason.SUCCEEDED, job_id=RUN))
    [refused] = run.feed(ended(RUN, JobState.SUCCEEDED))
    assert isinstance(refused, PromotionRefused)
    assert "it trained, and validated nothing" in refused.reason


def test_what_is_damaged_by_then_is_not_promoted() -> None:
    run = running()
    commit(run, 10)
    run.feed(validating(10))
    run.feed(damaged(10))
    [refused] = run.feed(ended(RUN, JobState.SUCCEEDED))[-1:]
    assert isinstance(refused, PromotionRefused)
    assert "damaged" in refused.reason


def test_of_a_job_of_which_nothing_is_left_the_verdict_is_no() -> None:
    run = checkpoint_run()
    run.feed(validating(10))
    [_, refused] = run.feed(ended(RUN, JobState.SUCCEEDED))
    assert isinstance(refused, PromotionRefused)
    assert (refused.job_id, refused.step) == (JOB, 10)
    assert run.feed(ended(RUN, JobState.SUCCEEDED)) == []


def test_a_run_from_a_checkpoint_that_validates_nothing_promotes_nothing() -> None:
    run = running()
    commit(run, 10)
    run.feed(allocated(job_id="job-2", resume=ref(1, 10)))
    run.feed(released(reason=ReleaseReason.SUCCEEDED, job_id="job-2"))
    assert run.feed(ended("job-2", JobState.SUCCEEDED)) == []


def pin(step: int, *, pinned: bool = True, job_id: str = JOB) -> PinAdmitted:
    return PinAdmitted(job_id=job_id, step=step, pinned=pinned, user="ada")


def test_a_pin_keeps_until_it_is_taken_away() -> None:
    run = running()
    commit(run, 10)
    changed = CheckpointPinChanged(job_id=JOB, attempt=1, step=10, pinned=True, user="ada")
    assert run.feed(pin(10)) == [changed]
    assert run.feed(pin(10)) == []
    for step in (20, 30):
        commit(run, step)
    assert steps(run) == [10, 30]
    run.feed(released(reason=ReleaseReason.SUCCEEDED))
    assert steps(run) == [10, 30]
    unpinned, gone = run.feed(pin(10, pinned=False))
    assert unpinned == changed.model_copy(update={"pinned": False})
    assert isinstance(gone, CheckpointDeleted)
    assert steps(run) == [30]
    assert run.feed(pin(10, pinned=False)) == []
    run.take_over()


def test_a_pin_of_what_is_gone_unknown_or_damaged_changes_nothing() -> None:
    run = running()
    commit(run, 10)
    assert run.feed(pin(5)) == []
    assert run.feed(pin(10, job_id="nobody")) == []
    run.feed(damaged(10))
    assert run.feed(pin(10)) == []


def test_of_two_attempts_that_saved_a_step_the_newer_ones_is_pinned() -> None:
    run = running(keep=Retention(latest=5))
    commit(run, 10)
    run.feed(released())
    run.feed(allocated(2, keep=Retention(latest=5)))
    commit(run, 10, attempt=2)
    run.feed(pin(10))
    assert [kept.pinned for kept in run.state.jobs[JOB].kept] == [False, True]
    run.feed(pin(10).model_copy(update={"attempt": 1}))
    assert [kept.pinned for kept in run.state.jobs[JOB].kept] == [True, True]


def test_a_log_that_deletes_what_is_pinned_or_promoted_is_told() -> None:
    gone = CheckpointDeleted(job_id=JOB, attempt=1, step=10, reason="")
    pinned = CheckpointPinChanged(job_id=JOB, attempt=1, step=10, pinned=True)
    assert log_violations([pinned, gone]) == ["('job-1', 1, 10) was deleted, and it was pinned"]
    unpinned = pinned.model_copy(update={"pinned": False})
    assert log_violations([pinned, unpinned, gone]) == []
    told = "('job-1', 1, 10) was deleted, and it was the newest promoted one"
    assert log_violations([promoted(10), gone]) == [told]
    assert log_violations([promoted(10), promoted(20), gone]) == []
