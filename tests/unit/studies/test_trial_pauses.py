"""Which checkpoints trials continue from, and what becomes of paused trials."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gangline_schemas.events.checkpoints import (
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointSaved,
)
from gangline_schemas.events.quota import JobRejected
from gangline_schemas.events.scheduling import CheckpointRef
from gangline_schemas.events.studies import (
    EndReason,
    StudyEnded,
    TrialCompleted,
    TrialFailed,
    TrialJobRequested,
    TrialPaused,
    TrialPromoted,
    TrialPruned,
    TrialSaveLost,
)
from gangline_schemas.job import JobState
from gangline_studies.core.state import Phase
from support.harnesses.study_run import Run, allocated, answer, begun, ended, exited, only, reported


def test_a_damaged_checkpoint_is_not_continued_from() -> None:
    run = begun()
    allocated(run)
    made = CheckpointRef(job_id="s-t0", attempt=1, step=10, world_size=2, commit_key="k")
    run.feed(CheckpointCommitted(job_id="s-t0", checkpoint=made, size_bytes=1, objects=1))
    damaged = CheckpointCorrupted(job_id="s-t0", attempt=1, step=10, key="k", reason="differs")
    run.feed(damaged)
    assert only(run, TrialSaveLost).step == 10
    assert run.state.trials["s", 0].saved is None


@pytest.mark.parametrize("given_up", [False, True])
def test_a_promotion_waits_for_a_checkpoint_that_is_on_its_way(*, given_up: bool) -> None:
    """The store is away."""
    stopping = {"kind": "asha", "mode": "promote", "min_steps": 1, "factor": 2}
    run = begun(stopping=stopping, limits={"trials": 2, "parallel": 1})
    allocated(run)
    reported(run, 1, 0.5)
    run.feed(CheckpointSaved(job_id="s-t0", attempt=1, step=1, world_size=2))
    ended(run, JobState.CANCELLED)
    answer(run)
    pauses(run, "s-t1", 1, 0.9, saved=True)
    for _ in range(5):
        run.tick(60)
    assert run.events(TrialPromoted) == []
    if given_up:
        run.feed(CheckpointAbandoned(job_id="s-t0", attempt=1, step=1, reason="the store is away"))
    else:
        made = CheckpointRef(job_id="s-t0", attempt=1, step=1, world_size=2, commit_key="k")
        run.feed(CheckpointCommitted(job_id="s-t0", checkpoint=made, size_bytes=1, objects=1))
    assert only(run, TrialPromoted).number == 0
    again = run.events(TrialJobRequested)[-1]
    assert again.spec.resume_from == (None if given_up else "s-t0")  # type: ignore[attr-defined]


def test_a_promotion_does_not_wait_for_a_clock_that_was_ahead_and_is_put_back() -> None:
    stopping = {"kind": "asha", "mode": "promote", "min_steps": 1, "factor": 2}
    run = begun(stopping=stopping, limits={"trials": 2, "parallel": 1})
    run.now += timedelta(days=3)
    allocated(run)
    reported(run, 1, 0.5)
    ended(run, JobState.CANCELLED)
    answer(run)
    pauses(run, "s-t1", 1, 0.9, saved=True)
    run.tick(10)
    assert run.events(TrialPromoted) == []
    run.now -= timedelta(days=3)
    run.tick()
    assert only(run, TrialPromoted).number == 0


def test_a_failure_without_a_verdict_does_not_wait_for_a_clock_that_was_ahead() -> None:
    run = begun()
    allocated(run)
    run.now += timedelta(days=3)
    ended(run, JobState.FAILED)
    assert run.events(TrialFailed) == []
    run.now -= timedelta(days=3)
    run.tick()
    assert only(run, TrialFailed).number == 0


def test_a_rejected_job_that_reported_before_ends_the_study_and_not_the_service() -> None:
    run = begun(stopping={"kind": "asha", "mode": "promote", "min_steps": 1, "factor": 2})
    reported(run, 1, 0.5)
    assert run.state.trials["s", 0].phase is Phase.PAUSED
    run.feed(JobRejected(job_id="s-t0", reason="no such team", submitted_at=run.now))
    assert only(run, StudyEnded).reason is EndReason.FAILED
    assert (run.state.trials, run.state.paused) == ({}, {})


# Few trials

ASHA = {"kind": "asha", "mode": "promote", "min_steps": 10, "max_steps": 90}
LIMITS = {"trials": 2, "parallel": 1, "failed": 1}


def pauses(run: Run, job: str, step: int, value: float, *, saved: bool) -> None:
    """The job starts, reports, saves, and ends as the study asks."""
    allocated(run, job)
    reported(run, step, value, job)
    if saved:
        made = CheckpointRef(job_id=job, attempt=1, step=step, world_size=2, commit_key="k")
        run.feed(CheckpointCommitted(job_id=job, checkpoint=made, size_bytes=1, objects=1))
    ended(run, JobState.CANCELLED, job)
    run.tick(2)


def paused_twice(*, saved: bool) -> Run:
    """A study of two trials, both paused at the first rung; the second one is better."""
    run = begun(stopping=ASHA, limits=LIMITS, sampler="random")
    pauses(run, "s-t0", 10, 3.0, saved=saved)
    answer(run, "random")
    pauses(run, "s-t1", 10, 2.0, saved=saved)
    return run


def kinds(run: Run, kind: type[Any]) -> list[int]:
    return [each.number for each in run.events(kind)]


def test_the_best_of_few_runs_to_its_end() -> None:
    run = paused_twice(saved=True)
    assert (kinds(run, TrialPaused), kinds(run, TrialPromoted)) == ([0, 1], [1])
    pauses(run, "s-t1-2", 30, 1.5, saved=True)
    assert (kinds(run, TrialPaused), kinds(run, TrialPromoted)) == ([0, 1, 1], [1, 1])
    sources = [each.spec.resume_from for each in run.events(TrialJobRequested)]
    assert sources == [None, None, "s-t1", "s-t1-2"]
    allocated(run, "s-t1-3")
    reported(run, 90, 1.0, "s-t1-3")
    exited(run, "s-t1-3")
    ended(run, JobState.SUCCEEDED, "s-t1-3")
    run.tick(3)
    assert kinds(run, TrialCompleted) == [1]
    assert kinds(run, TrialPruned) == [0]
    assert only(run, StudyEnded).reason is EndReason.TRIALS


def test_a_trial_without_a_checkpoint_starts_over() -> None:
    """The store was away when it paused, or its program saves nothing."""
    run = paused_twice(saved=False)
    run.tick(20)
    assert kinds(run, TrialPromoted) == []
    run.tick(11)
    assert kinds(run, TrialPromoted) == [1]
    again = run.events(TrialJobRequested)[-1]
    assert (again.job_id, again.spec.resume_from) == ("s-t1-2", None)  # type: ignore[attr-defined]
    allocated(run, "s-t1-2")
    assert reported(run, 10, 9.0, "s-t1-2") == []  # it was measured there
    reported(run, 90, 1.0, "s-t1-2")
    exited(run, "s-t1-2")
    ended(run, JobState.SUCCEEDED, "s-t1-2")
    assert only(run, TrialCompleted).values == {"loss": 1.0}
    assert only(run, StudyEnded).reason is EndReason.TRIALS


@pytest.mark.parametrize("started", [False, True])
def test_a_promotion_that_the_scheduler_cannot_begin_is_made_again(*, started: bool) -> None:
    """The scheduler does not know the checkpoint yet; or it is gone while the job waits again."""
    stopping = {"kind": "asha", "mode": "promote", "min_steps": 1, "factor": 2}
    run = begun(stopping=stopping, limits={"trials": 2, "parallel": 1})
    allocated(run)
    reported(run, 1, 0.5)
    made = CheckpointRef(job_id="s-t0", attempt=1, step=1, world_size=2, commit_key="k")
    run.feed(CheckpointCommitted(job_id="s-t0", checkpoint=made, size_bytes=1, objects=1))
    ended(run, JobState.CANCELLED)
    answer(run)
    allocated(run, "s-t1")
    reported(run, 1, 0.9, "s-t1")
    ended(run, JobState.CANCELLED, "s-t1")
    assert run.events(TrialJobRequested)[-1].job_id == "s-t0-2"  # type: ignore[attr-defined]
    if started:
        allocated(run, "s-t0-2")
        lost = CheckpointCorrupted(job_id="s-t0", attempt=1, step=1, key="k", reason="differs")
        run.feed(lost)
        assert run.state.trials["s", 0].saved is None
    ended(run, JobState.FAILED, "s-t0-2", "resume_from: the checkpoint of run s-t0 is gone")
    for _ in range(3):
        run.tick(20)
    assert not run.events(TrialFailed)
    assert run.events(TrialJobRequested)[-1].job_id == "s-t0-3"  # type: ignore[attr-defined]
    allocated(run, "s-t0-3")
    assert run.state.trials["s", 0].phase is Phase.RUNNING


def test_a_paused_trial_that_ends_well_all_the_same_has_its_last_value() -> None:
    """Its job was over before the study could ask it to stop."""
    run = begun(stopping=ASHA, limits=LIMITS, sampler="random")
    allocated(run)
    reported(run, 10, 3.0)
    reported(run, 50, 2.0)
    reported(run, 90, 1.0)
    exited(run)
    ended(run, JobState.SUCCEEDED)
    assert kinds(run, TrialPaused) == [0]
    assert only(run, TrialCompleted).values == {"loss": 1.0}
    assert run.state.rungs["s", 0, 1] == ((2.0, 0),)
    assert run.state.paused == {}


def test_a_trial_that_pauses_again_has_its_value_at_that_rung() -> None:
    run = begun(stopping=ASHA, limits=LIMITS, sampler="random")
    allocated(run)
    reported(run, 10, 2.0)
    reported(run, 20, 9.0)
    pauses(run, "s-t0", 25, 9.5, saved=True)
    answer(run, "random")
    pauses(run, "s-t1", 10, 3.0, saved=True)
    ended(run, JobState.FAILED, "s-t0-2", "run s-t0 has no committed checkpoint")
    assert kinds(run, TrialPaused) == [0, 1, 0]
    assert kinds(run, TrialPromoted) == [0, 0]
    assert [*run.state.paused.values()] == [((3.0, 1),)]
