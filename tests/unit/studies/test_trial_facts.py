"""What the facts about a trial's job mean for the trial and its study."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gangline_schemas.base import Event
from gangline_schemas.events.automation import StudyStopRequested, StudySubmitted
from gangline_schemas.events.checkpoints import CheckpointCommitted, CheckpointCorrupted
from gangline_schemas.events.faults import FailureCause, FailureClass, GangFailed
from gangline_schemas.events.quota import JobRejected, RequestRefused
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    JobStateChanged,
    Rendezvous,
)
from gangline_schemas.events.studies import (
    EndReason,
    PruneReason,
    StudyCreated,
    StudyEnded,
    StudyEnding,
    StudyRefused,
    TrialCompleted,
    TrialFailed,
    TrialFailure,
    TrialJobRequested,
    TrialJobStopRequested,
    TrialMeasured,
    TrialPaused,
    TrialPromoted,
    TrialProposed,
    TrialPruned,
    TrialSaveLost,
    TrialWithdrawn,
)
from gangline_schemas.events.trials import TrialLogged
from gangline_schemas.events.workers import ExitReason, TrialReported, WorkerExited
from gangline_schemas.job import JobState
from gangline_schemas.study_file import StudySpec
from gangline_studies.core.asking import Ask, NoSuggestion, Suggestion
from gangline_studies.core.decide import StudyDecider
from gangline_studies.core.snapshot import fingerprint
from gangline_studies.core.state import Phase, StudyState
from support.harnesses.decider_run import START, DeciderRun
from support.harnesses.study_world import PLACE

Run = DeciderRun[StudyState, None]


def spec(**changes: Any) -> StudySpec:
    fields: dict[str, Any] = {
        "name": "s",
        "team": "nlp",
        "objective": {"metric": "loss"},
        "space": {"x": {"type": "float", "low": 0, "high": 1}},
        "job": {"run": "x", "resources": {"gpus": 2}},
        "limits": {"trials": 4, "parallel": 2, "failed": 1},
    }
    return StudySpec.model_validate({**fields, **changes})


def begun(**changes: Any) -> Run:
    """A study whose first trial waits."""
    run: Run = DeciderRun(StudyDecider(), fingerprint)
    run.feed(StudySubmitted(study_id="s", spec=spec(**changes), user="ada"))
    answer(run)
    return run


def answer(run: Run, by: str = "tpe") -> list[Event]:
    ((key, ask),) = run.effects().items()
    assert isinstance(ask, Ask)
    parameters = {"x": ask.number / 10}
    return run.done(key, Suggestion("s", ask.number, parameters, by, ask.results))


def _first_job(run: Run) -> TrialJobRequested:
    found = run.events(TrialJobRequested)[0]
    assert isinstance(found, TrialJobRequested)
    return found


def allocated(run: Run, job: str = "s-t0", attempt: int = 1) -> list[Event]:
    spec_of_job = _first_job(run).spec
    gang = GangAllocated(
        job_id=job, attempt=attempt, team="nlp", world_size=2, nodes=(PLACE,),
        rendezvous=Rendezvous(address="10.0.0.1", port=1), spec=spec_of_job,
    )  # fmt: skip
    return run.feed(gang)


def reported(run: Run, step: int, value: float | None, job: str = "s-t0") -> list[Event]:
    return run.feed(TrialReported(job_id=job, attempt=1, step=step, values={"loss": value}))


def ended(run: Run, state: JobState, job: str = "s-t0", reason: str = "") -> list[Event]:
    return run.feed(
        JobStateChanged(
            job_id=job, attempt=1, previous=JobState.RUNNING, state=state, reason=reason
        )
    )


def exited(run: Run, job: str = "s-t0") -> list[Event]:
    return run.feed(
        WorkerExited(
            job_id=job, attempt=1, rank=0, node_id="n1", incarnation="i",
            reason=ExitReason.FINISHED, exit_code=0,
        )
    )  # fmt: skip


def failed(run: Run, kind: FailureClass, action: str = "fail") -> list[Event]:
    return run.feed(
        GangFailed(
            job_id="s-t0", attempt=1, cause=FailureCause.USER_ERROR, action=action,
            message="why", restarts_used=0, restarts_max=3, failed_at=run.now, failure_class=kind,
        )
    )  # fmt: skip


def only(run: Run, kind: type[Any]) -> Any:
    (found,) = run.events(kind)
    return found


def test_a_study_is_created_once_and_its_id_is_taken() -> None:
    run: Run = DeciderRun(StudyDecider(), fingerprint)
    asked = run.received(StudySubmitted(study_id="s", spec=spec(), user="ada"))
    assert [type(each) for each in run.take(asked)] == [StudyCreated]
    assert run.take(asked) == []
    assert run.feed(StudySubmitted(study_id="s", spec=spec(), user="ada")) == []
    run.feed(StudySubmitted(study_id="s", spec=spec(seed=5), user="bob"))
    assert "is taken by another study" in only(run, StudyRefused).reason


def test_the_job_of_a_trial_has_its_parameters_and_names_it() -> None:
    job = only(begun(), TrialJobRequested)
    assert (job.job_id, job.user, job.spec.name) == ("s-t0", "ada", "s-t0")
    assert job.spec.hyperparameters == {"x": 0.0}
    assert (job.spec.trial.study_id, job.spec.trial.metrics) == ("s", ("loss",))


def test_one_trial_waits_and_a_second_one_runs() -> None:
    run = begun()
    assert run.effects() == {}
    allocated(run)
    answer(run)
    assert run.effects() == {}
    allocated(run, "s-t1")
    assert run.effects() == {}  # parallel is 2


def test_a_result_is_complete_once_rank_0_has_ended() -> None:
    run = begun()
    allocated(run)
    ended(run, JobState.SUCCEEDED)
    assert not run.events(TrialCompleted)
    reported(run, 10, 0.5)  # it was on its way
    exited(run)
    assert only(run, TrialCompleted).values == {"loss": 0.5}
    assert run.state.studies["s"].best == 0


def test_a_result_that_mlflow_got_waits_a_moment_and_keeps_its_place() -> None:
    run = begun(limits={"trials": 4, "parallel": 1})
    allocated(run)
    logged = TrialLogged(job_id="s-t0", attempt=1, step=10, values={"loss": 0.5})
    run.feed(logged)
    exited(run)
    ended(run, JobState.SUCCEEDED)
    run.tick(1)
    assert not run.events(TrialCompleted)
    assert run.effects() == {}  # the next suggestion shall know the result
    run.feed(logged.model_copy(update={"step": 20, "values": {"loss": 0.4}}))
    run.tick(1)
    assert only(run, TrialCompleted).values == {"loss": 0.4}
    assert run.effects()


def test_a_program_that_reports_nothing_has_no_result() -> None:
    run = begun()
    allocated(run)
    exited(run)
    ended(run, JobState.SUCCEEDED)
    run.tick(1)
    assert run.events(TrialFailed) == []  # its logs to MLflow may still arrive
    run.tick(1)
    found = only(run, TrialFailed)
    assert found.reason is TrialFailure.NO_RESULT
    assert "did not report loss" in found.message


def test_memory_counts_as_a_broken_constraint_and_not_as_a_failure() -> None:
    run = begun()
    allocated(run)
    failed(run, FailureClass.OUT_OF_MEMORY)
    ended(run, JobState.FAILED)
    assert only(run, TrialFailed).reason is TrialFailure.OUT_OF_MEMORY
    study = run.state.studies["s"]
    assert (study.failed, study.results) == (0, 1)


@pytest.mark.parametrize("verdict_first", [True, False])
def test_an_exit_with_1_counts_and_too_many_end_the_study(verdict_first: bool) -> None:
    run = begun(limits={"trials": 4, "parallel": 2, "failed": 0})
    allocated(run)
    if verdict_first:
        failed(run, FailureClass.USER_ERROR)
        ended(run, JobState.FAILED)
    else:
        ended(run, JobState.FAILED)
        assert not run.events(TrialFailed)
        failed(run, FailureClass.USER_ERROR)
    assert only(run, TrialFailed).message == "why"
    assert only(run, StudyEnding).reason is EndReason.FAILED
    assert run.events(StudyEnded)


def test_a_failure_without_a_verdict_is_one_after_a_while() -> None:
    run = begun()
    allocated(run)
    ended(run, JobState.FAILED, reason="max_runtime_hours reached")
    run.tick(5)
    assert not run.events(TrialFailed)
    run.tick(6)
    assert only(run, TrialFailed).message == "max_runtime_hours reached"


def test_a_restart_that_the_job_makes_itself_is_nothing() -> None:
    run = begun()
    allocated(run)
    restarting = GangFailed(
        job_id="s-t0", attempt=1, cause=FailureCause.NODE, action="restart", message="n1 is gone",
        restarts_used=1, restarts_max=3, failed_at=run.now,
    )  # fmt: skip
    assert run.feed(restarting) == []
    ended(run, JobState.PREEMPTED)
    allocated(run, attempt=2)
    assert run.state.trials["s", 0].phase is Phase.RUNNING


def test_a_value_that_is_not_finite_ends_the_trial_there() -> None:
    run = begun()
    allocated(run)
    reported(run, 10, None)
    found = only(run, TrialPruned)
    assert (found.reason, found.step) == (PruneReason.NOT_FINITE, 10)
    assert only(run, TrialJobStopRequested).job_id == "s-t0"


@pytest.mark.parametrize("policy", [False, True])
def test_a_loss_that_is_not_finite_ends_the_trial_unless_the_job_has_a_policy(
    *, policy: bool
) -> None:
    job: dict[str, Any] = {"run": "x", "resources": {"gpus": 2}}
    if policy:
        job["training"] = {"on_nan": {"skip": 3}}
    run = begun(job=job)
    allocated(run)
    verdict = failed(run, FailureClass.NAN, action="restart")
    assert bool(verdict) is not policy
    if policy:
        failed(run, FailureClass.NAN)
    assert only(run, TrialPruned).reason is PruneReason.NOT_FINITE
    assert only(run, TrialJobStopRequested).job_id == "s-t0"
    assert run.state.studies["s"].failed == 0


def test_steps_that_are_repeated_after_a_restart_are_not_measured_again() -> None:
    run = begun()
    allocated(run)
    reported(run, 10, 0.5)
    assert reported(run, 10, 0.7) == []
    assert reported(run, 9, 0.7) == []
    assert len(run.events(TrialMeasured)) == 1
    allocated(run, attempt=2)
    assert reported(run, 20, 0.1) == []  # of the attempt that is over


@pytest.mark.parametrize(
    "refusal",
    [
        JobRejected(job_id="s-t0", reason="no such team", submitted_at=START),
        RequestRefused(request="trial.job.requested", target="s-t0", reason="no such team"),
    ],
)
def test_a_rejected_job_ends_the_study_with_the_reason(refusal: Event) -> None:
    run = begun()
    run.feed(refusal)
    assert "no such team" in only(run, StudyEnding).message
    assert only(run, StudyEnded).reason is EndReason.FAILED


def test_a_job_that_a_user_cancels_is_no_failure() -> None:
    run = begun()
    allocated(run)
    ended(run, JobState.CANCELLED)
    assert only(run, TrialFailed).reason is TrialFailure.CANCELLED
    assert run.state.studies["s"].failed == 0


def test_a_stopped_study_ends_once_its_jobs_have() -> None:
    run = begun()
    allocated(run)
    answer(run)
    run.feed(StudyStopRequested(study_id="s", user="ada"))
    assert {each.job_id for each in run.events(TrialJobStopRequested)} == {"s-t0", "s-t1"}
    assert only(run, TrialWithdrawn).number == 1
    ended(run, JobState.CANCELLED)
    assert not run.events(StudyEnded)
    ended(run, JobState.CANCELLED, "s-t1")
    assert only(run, StudyEnded).reason is EndReason.STOPPED
    run.feed(StudyStopRequested(study_id="s", user="ada"))
    assert "has already ended" in only(run, StudyRefused).reason


def test_the_deadline_ends_a_study() -> None:
    run = begun(limits={"trials": 4, "deadline": START + timedelta(seconds=60)})
    run.tick(59)
    assert not run.events(StudyEnding)
    run.tick(2)
    assert only(run, StudyEnding).reason is EndReason.DEADLINE


def test_a_trial_that_waits_is_taken_back_when_a_result_came() -> None:
    run = begun()
    allocated(run)
    answer(run)
    reported(run, 10, 0.5)
    exited(run)
    run.now += timedelta(seconds=5)
    ended(run, JobState.SUCCEEDED)
    assert only(run, TrialWithdrawn).number == 1
    ended(run, JobState.CANCELLED, "s-t1")
    answer(run)
    newest = run.events(TrialProposed)[-1]
    assert (newest.number, newest.results) == (2, 1)
    assert run.state.studies["s"].proposed == 2


def test_a_start_point_is_not_taken_back() -> None:
    run = begun()
    allocated(run)
    answer(run, by="start")
    reported(run, 10, 0.5)
    exited(run)
    run.now += timedelta(seconds=5)
    ended(run, JobState.SUCCEEDED)
    run.tick(5)
    assert not run.events(TrialWithdrawn)


def test_a_sampler_that_fails_ends_the_study() -> None:
    run: Run = DeciderRun(StudyDecider(), fingerprint)
    run.feed(StudySubmitted(study_id="s", spec=spec(), user="ada"))
    ((key, _ask),) = run.effects().items()
    run.done(key, NoSuggestion("s", 0, "the sampler failed"))
    assert only(run, StudyEnding).reason is EndReason.SAMPLER


def test_a_late_answer_is_not_taken() -> None:
    run = begun()
    late = Suggestion("s", 0, {"x": 0.9}, "tpe", 0)
    assert run.done("s/0", late) == []


def test_a_damaged_checkpoint_is_not_continued_from() -> None:
    run = begun()
    allocated(run)
    made = CheckpointRef(job_id="s-t0", attempt=1, step=10, world_size=2, commit_key="k")
    run.feed(CheckpointCommitted(job_id="s-t0", checkpoint=made, size_bytes=1, objects=1))
    damaged = CheckpointCorrupted(job_id="s-t0", attempt=1, step=10, key="k", reason="differs")
    run.feed(damaged)
    assert only(run, TrialSaveLost).step == 10
    assert run.state.trials["s", 0].saved is None


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


def test_trials_without_a_checkpoint_end_the_study_some_day() -> None:
    run = paused_twice(saved=False)
    run.tick(20)
    assert run.events(TrialPruned) == []
    for _ in range(4):
        run.tick(11)
    assert {each.reason for each in run.events(TrialPruned)} == {PruneReason.UNSAVED}
    assert only(run, StudyEnded).reason is EndReason.TRIALS


def test_a_promotion_that_the_scheduler_cannot_begin_yet_is_made_again() -> None:
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
    ended(run, JobState.FAILED, "s-t0-2", "run s-t0 has no committed checkpoint")
    assert not run.events(TrialFailed)
    assert run.events(TrialJobRequested)[-1].job_id == "s-t0-3"  # type: ignore[attr-defined]
    allocated(run, "s-t0-3")
    assert run.state.trials["s", 0].phase is Phase.RUNNING
