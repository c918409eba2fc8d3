"""What the facts about a trial's job mean for the trial and its study."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from gangline_schemas.base import Event
from gangline_schemas.events.automation import StudyStopRequested, StudySubmitted
from gangline_schemas.events.faults import FailureClass
from gangline_schemas.events.quota import JobRejected, RequestRefused
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
    TrialProposed,
    TrialPruned,
    TrialStarted,
    TrialWithdrawn,
)
from gangline_schemas.events.trials import TrialLogged, TrialLogsEnded
from gangline_schemas.job import JobState
from gangline_studies.core import decide, requests
from gangline_studies.core.decide import StudyDecider
from gangline_studies.core.snapshot import fingerprint
from gangline_studies.core.state import Phase
from gangline_studies.core.suggesting import NoSuggestion, Suggestion
from support.builders.gangs import gang_failed
from support.harnesses.decider_run import START, DeciderRun
from support.harnesses.study_run import (
    Run,
    allocated,
    answer,
    begun,
    ended,
    exited,
    failed,
    first_job,
    only,
    reported,
    spec,
)


def test_a_study_is_created_once_and_its_id_is_taken() -> None:
    run: Run = DeciderRun(StudyDecider(), fingerprint)
    asked = run.received(StudySubmitted(study_id="s", spec=spec(), user="ada"))
    assert [type(each) for each in run.take(asked)] == [StudyCreated]
    assert run.take(asked) == []
    assert run.feed(StudySubmitted(study_id="s", spec=spec(), user="ada")) == []
    run.feed(StudySubmitted(study_id="s", spec=spec(seed=5), user="bob"))
    assert "is taken by another study" in only(run, StudyRefused).reason


def test_many_studies_with_one_deadline_end_some_at_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "MOST_DECISIONS", 1)
    run: Run = DeciderRun(StudyDecider(), fingerprint)
    limits = {"trials": 4, "deadline": (run.now + timedelta(hours=1)).isoformat()}
    for name in ("s", "t"):
        run.feed(StudySubmitted(study_id=name, spec=spec(limits=limits), user="ada"))
    run.tick(3600)
    assert [*run.state.active] == ["t"]
    run.tick()
    assert not run.state.active


def test_a_study_with_true_in_place_of_1_is_another_one() -> None:
    run: Run = DeciderRun(StudyDecider(), fingerprint)
    one, other = ({"x": {"type": "choice", "values": [value, 2]}} for value in (1, True))
    run.feed(StudySubmitted(study_id="s", spec=spec(space=one), user="ada"))
    run.feed(StudySubmitted(study_id="s", spec=spec(space=other), user="ada"))
    assert "is taken by another study" in only(run, StudyRefused).reason


def test_active_studies_of_a_team_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "ACTIVE_OF_TEAM", 2)
    run: Run = DeciderRun(StudyDecider(), fingerprint)
    for study_id in ("a", "b", "c"):
        run.feed(StudySubmitted(study_id=study_id, spec=spec(), user="ada"))
    assert only(run, StudyRefused).reason.startswith("2 studies of team nlp are active")
    theirs = spec().model_copy(update={"team": "vision"})
    run.feed(StudySubmitted(study_id="theirs", spec=theirs, user="eve"))
    assert [*run.state.active] == ["a", "b", "theirs"]


def test_a_file_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MOST_BYTES", len(spec().encode()) - 1)
    run: Run = DeciderRun(StudyDecider(), fingerprint)
    run.feed(StudySubmitted(study_id="s", spec=spec(), user="ada"))
    assert "bytes with all defaults; at most" in only(run, StudyRefused).reason


def test_the_job_of_a_trial_has_its_parameters_and_names_it() -> None:
    job = only(begun(), TrialJobRequested)
    assert (job.job_id, job.user, job.spec.name) == ("s-t0", "ada", "s-t0")
    assert job.spec.hyperparameters == {"x": 0.0}
    assert (job.spec.trial.study_id, job.spec.trial.metrics) == ("s", ("loss",))


def test_a_suggestion_that_is_no_number_ends_the_study_and_says_why() -> None:
    run: Run = DeciderRun(StudyDecider(), fingerprint)
    run.feed(StudySubmitted(study_id="s", spec=spec(), user="ada"))
    ((key, _),) = run.effects().items()
    run.done(key, Suggestion("s", 0, {"x": math.nan}, "tpe", 0))
    ending = only(run, StudyEnding)
    assert ending.reason is EndReason.SAMPLER
    assert "parameters of trial 0" in ending.message
    assert only(run, StudyEnded)


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


def test_a_result_that_mlflow_got_waits_for_the_end_of_its_logs_and_keeps_its_place() -> None:
    run = begun(limits={"trials": 4, "parallel": 1})
    allocated(run)
    logged = TrialLogged(job_id="s-t0", attempt=1, step=10, values={"loss": 0.5})
    run.feed(logged)
    exited(run)
    ended(run, JobState.SUCCEEDED)
    run.tick(9)
    assert not run.events(TrialCompleted)
    assert run.effects() == {}  # the next suggestion must know the result
    run.feed(logged.model_copy(update={"step": 20, "values": {"loss": 0.4}}))
    run.feed(TrialLogsEnded(job_id="s-t0"))
    assert only(run, TrialCompleted).values == {"loss": 0.4}
    assert run.effects()


@pytest.mark.parametrize("last", ["logs", "job"])
def test_the_end_of_its_logs_may_come_before_that_of_the_job_or_never(last: str) -> None:
    run = begun()
    allocated(run)
    run.feed(TrialLogged(job_id="s-t0", attempt=1, step=10, values={"loss": 0.5}))
    exited(run)
    if last == "job":
        run.feed(TrialLogsEnded(job_id="s-t0"))
    ended(run, JobState.SUCCEEDED)
    if last == "logs":
        run.tick(11)
    assert only(run, TrialCompleted).values == {"loss": 0.5}


def test_a_program_that_reports_nothing_has_no_result() -> None:
    run = begun()
    allocated(run)
    exited(run)
    ended(run, JobState.SUCCEEDED)
    run.tick(9)
    assert run.events(TrialFailed) == []  # its logs to MLflow may still arrive
    run.feed(TrialLogsEnded(job_id="s-t0"))
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
    assert run.feed(gang_failed("s-t0", 1, run.now)) == []
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
    assert not run.events(TrialWithdrawn), "it may have got the GPUs that are free now"
    run.tick(1)
    assert only(run, TrialWithdrawn).number == 1
    ended(run, JobState.CANCELLED, "s-t1")
    answer(run)
    newest = run.events(TrialProposed)[-1]
    assert (newest.number, newest.results) == (2, 1)
    assert run.state.studies["s"].proposed == 2


def test_a_trial_that_gets_the_gpus_of_the_one_that_ended_is_not_taken_back() -> None:
    run = begun()
    allocated(run)
    answer(run)
    reported(run, 10, 0.5)
    exited(run)
    run.now += timedelta(seconds=5)
    ended(run, JobState.SUCCEEDED)
    allocated(run, "s-t1")
    run.tick(60)
    assert not run.events(TrialWithdrawn)
    assert [each.number for each in run.events(TrialStarted)] == [0, 1]


def test_trials_are_taken_back_three_times_before_one_begins() -> None:
    run = begun(limits={"trials": 20, "parallel": 8})

    def result(trial: int) -> None:
        job = f"s-t{trial}"
        reported(run, 10, 0.5, job)
        exited(run, job)
        ended(run, JobState.SUCCEEDED, job)
        run.tick(1)

    for trial in range(7):
        allocated(run, f"s-t{trial}")
        answer(run)
    for waits, trial in enumerate(range(3), start=7):
        result(trial)
        ended(run, JobState.CANCELLED, f"s-t{waits}")
        answer(run)
    result(3)
    assert [each.number for each in run.events(TrialWithdrawn)] == [7, 8, 9]
    allocated(run, "s-t10")
    answer(run)
    result(4)
    assert run.events(TrialWithdrawn)[-1].number == 11, "the count begins again"


def test_a_trial_in_the_place_of_one_that_was_taken_back_keeps_its_age_in_the_queue() -> None:
    run = begun(limits={"trials": 20, "parallel": 3})
    first_job(run)
    for trial in range(2):
        allocated(run, f"s-t{trial}")
        run.tick(600)
        answer(run)
    asked = run.now
    for trial, waits in ((0, 2), (1, 3)):
        run.tick(3600)
        reported(run, 10, 0.5, f"s-t{trial}")
        exited(run, f"s-t{trial}")
        ended(run, JobState.SUCCEEDED, f"s-t{trial}")
        run.tick(1)
        ended(run, JobState.CANCELLED, f"s-t{waits}")
        answer(run)
    allocated(run, "s-t4")
    answer(run)
    since = {one.job_id: one.waits_since for one in run.events(TrialJobRequested)}  # type: ignore[attr-defined]
    assert since == {
        "s-t0": None, "s-t1": None, "s-t2": None, "s-t3": asked, "s-t4": asked, "s-t5": None
    }  # fmt: skip


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


def test_an_answer_about_a_study_that_is_forgotten_is_nothing() -> None:
    run = begun()
    assert run.done("gone/0", Suggestion("gone", 0, {"x": 0.5}, "tpe", 0)) == []


def test_a_late_answer_is_not_taken() -> None:
    run = begun()
    late = Suggestion("s", 0, {"x": 0.9}, "tpe", 0)
    assert run.done("s/0", late) == []
