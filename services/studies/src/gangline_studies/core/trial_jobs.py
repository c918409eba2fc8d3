"""The jobs of trials: when they start, what they cost, and which of their ends are results.

A job restarts by itself after a failure of a node, a hang or a preemption. So only its final state
counts here. The verdict of the fault manager and the last evaluation come in other topics than that
state, in no common order. So a trial may have its result a moment after its job ended.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from gangline_schemas.base import Event
from gangline_schemas.clocks import lasts
from gangline_schemas.events.checkpoints import (
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointDeleted,
    CheckpointSaved,
)
from gangline_schemas.events.faults import FailureClass, GangFailed
from gangline_schemas.events.quota import JobRejected, RequestRefused
from gangline_schemas.events.scheduling import GangAllocated, GangReleased, JobStateChanged
from gangline_schemas.events.studies import (
    EndReason,
    PruneReason,
    StudyEnding,
    TrialCharged,
    TrialCompleted,
    TrialExited,
    TrialFailed,
    TrialFailure,
    TrialJobEnded,
    TrialJobRequested,
    TrialLogsRead,
    TrialPaused,
    TrialSaved,
    TrialSaveLost,
    TrialSaving,
    TrialStarted,
)
from gangline_schemas.events.trials import TrialEvaluated, TrialLogsEnded
from gangline_schemas.events.workers import WorkerExited
from gangline_schemas.job import RESUME_PROBLEM, JobState
from gangline_studies.core import measuring
from gangline_studies.core.state import JobOf, Phase, Saved, StudyPlan, Trial, job_id, job_of_id
from gangline_studies.core.values import result_of

LAST_REPORT = timedelta(seconds=10)
"""So long after its job succeeded a trial waits for its last evaluations, at most."""
MOST_TRIES = 100
"""A trial that has had so many jobs is not promoted again where one could not begin."""
VERDICT = timedelta(seconds=10)
"""So long after its job failed it waits for the fault manager's verdict, at most."""


def take(plan: StudyPlan, event: Event, at: datetime) -> str | None:
    """Note a fact about a trial's job; the study that it is about."""
    name = _job_of(event)
    job = None if name is None else plan.state.jobs.get(name) or _earlier(plan, name, event)
    if job is None:
        return None
    trial = plan.state.trials[job.study_id, job.number]
    _take(plan, job, trial, event, at)
    return job.study_id


def _earlier(plan: StudyPlan, name: str, event: Event) -> JobOf | None:
    """An earlier job of a trial, if the news is of its checkpoints: the trial may need one."""
    if not isinstance(event, CheckpointAbandoned | CheckpointCorrupted | CheckpointDeleted):
        return None
    job = job_of_id(name)
    return job if job and (job.study_id, job.number) in plan.state.trials else None


def _job_of(event: Event) -> str | None:
    match event:
        case RequestRefused(request=TrialJobRequested.type, target=target):
            return target
        case (
            GangAllocated()
            | GangReleased()
            | JobStateChanged()
            | GangFailed()
            | JobRejected()
            | CheckpointSaved()
            | CheckpointAbandoned()
            | CheckpointCommitted()
            | CheckpointCorrupted()
            | CheckpointDeleted()
            | WorkerExited()
            | TrialEvaluated()
            | TrialLogsEnded()
        ):
            return event.job_id
        case _:
            return None


def _take(  # noqa: C901, PLR0912 - a dispatch by type
    plan: StudyPlan, job: JobOf, trial: Trial, event: Event, at: datetime
) -> None:
    match event:
        case GangAllocated():
            _started(plan, job, trial, event, at)
        case GangReleased(attempt=attempt):
            if trial.since is not None and attempt == trial.attempt:
                _charge(plan, job, trial, event.gpu_seconds)
        case JobStateChanged(state=state, reason=reason):
            if state.terminal and trial.live:
                _job_ended(plan, job, trial, state, reason, at)
        case GangFailed(failure_class=FailureClass.NAN, action=action, attempt=attempt):
            if attempt >= trial.attempt and trial.phase in {Phase.RUNNING, Phase.WAITING}:
                policy = plan.state.studies[job.study_id].spec.job.get("training")
                if action == "fail" or policy is None:  # else the job tries as its policy says
                    why_pruned = PruneReason.NOT_FINITE
                    measuring.prune(plan, job.study_id, job.number, why_pruned)
        case GangFailed(action="fail", attempt=attempt):
            if attempt >= trial.attempt and trial.phase in {Phase.RUNNING, Phase.WAITING}:
                oom = event.failure_class is FailureClass.OUT_OF_MEMORY
                why = TrialFailure.OUT_OF_MEMORY if oom else TrialFailure.FAILED
                _fail(plan, job, why, event.message)
        case JobRejected(reason=reason) | RequestRefused(reason=reason):
            if trial.live and not trial.attempt:
                _rejected(plan, job, trial, reason)
        case CheckpointSaved(attempt=attempt, step=step):
            saving = Saved(job.part, attempt, step)
            if trial.saved is None and trial.saving != saving:
                plan.add(job.study_id, TrialSaving(**_of(job), attempt=attempt, step=step))
        case CheckpointCommitted():
            _saved(plan, job, trial, event)
        case (
            CheckpointAbandoned(attempt=attempt, step=step)
            | CheckpointCorrupted(attempt=attempt, step=step)
            | CheckpointDeleted(attempt=attempt, step=step)
        ):
            if (trial.saved or trial.saving) == Saved(job.part, attempt, step):
                plan.add(job.study_id, TrialSaveLost(**_of(job), attempt=attempt, step=step))
        case WorkerExited(rank=0, attempt=attempt):
            if attempt > trial.exited:
                plan.add(job.study_id, TrialExited(**_of(job), attempt=attempt))
                _settle(plan, job.study_id, job.number)
        case TrialLogsEnded():
            awaited = trial.logged or not trial.values
            if awaited and not (trial.logs_read or trial.phase.terminal):
                plan.add(job.study_id, TrialLogsRead(**_of(job)))
                _settle(plan, job.study_id, job.number)
        case TrialEvaluated():
            measuring.take(plan, job, trial, event)
        case _:
            pass


def _of(job: JobOf) -> dict[str, object]:
    return {"study_id": job.study_id, "number": job.number, "part": job.part}


def _started(plan: StudyPlan, job: JobOf, trial: Trial, event: GangAllocated, at: datetime) -> None:
    if event.attempt <= trial.attempt or not trial.live:
        return
    if trial.since is not None:  # its release was not seen: it ended when this one began
        _charge(plan, job, trial, trial.running_gpu_seconds(at))
    gpus = sum(len(node.gpus) for node in event.nodes)
    started = TrialStarted(**_of(job), attempt=event.attempt, gpus=gpus, allocated_at=at)
    plan.add(job.study_id, started)


def _charge(plan: StudyPlan, job: JobOf, trial: Trial, gpu_seconds: float) -> None:
    charged = TrialCharged(**_of(job), attempt=trial.attempt, gpu_seconds=max(gpu_seconds, 0.0))
    plan.add(job.study_id, charged)


def _saved(plan: StudyPlan, job: JobOf, trial: Trial, event: CheckpointCommitted) -> None:
    made = event.checkpoint
    held = trial.saved
    if held is None or (held.part, held.attempt, held.step) < (job.part, made.attempt, made.step):
        saved = TrialSaved(**_of(job), attempt=made.attempt, step=made.step)
        plan.add(job.study_id, saved)


def _job_ended(
    plan: StudyPlan, job: JobOf, trial: Trial, state: JobState, reason: str, at: datetime
) -> None:
    """The scheduler releases the gang in the same moment: its event is not waited for."""
    if trial.since is not None:
        _charge(plan, job, trial, trial.running_gpu_seconds(at))
    ended = TrialJobEnded(**_of(job), state=state, message=reason)
    plan.add(job.study_id, ended)
    _settle(plan, job.study_id, job.number)


def settle(plan: StudyPlan, study_id: str) -> None:
    """At a Tick: give the trials whose jobs ended some time ago their result."""
    for number in plan.state.studies[study_id].awaiting:
        _settle(plan, study_id, number)


def _settle(plan: StudyPlan, study_id: str, number: int) -> None:
    """The result of a trial whose job has ended, once all of it is known."""
    trial = plan.state.trials.get((study_id, number))
    if trial is None or trial.live or trial.phase.terminal or trial.job_state is None:
        return
    ended_at = trial.job_ended_at or plan.now
    job = JobOf(study_id, number, trial.part)
    if trial.job_state is JobState.SUCCEEDED:
        # Of reports, the exit is the last. Evaluations by MLflow come in a stream of their own.
        reported = bool(trial.values) and not trial.logged
        known = trial.exited >= trial.attempt and (reported or trial.logs_read)
        if known or not lasts(ended_at, plan.now, LAST_REPORT):
            _complete(plan, job, trial)
    elif trial.phase is Phase.PAUSED:
        return
    elif trial.job_state is JobState.CANCELLED:
        _fail(plan, job, TrialFailure.CANCELLED, trial.message)
    elif 1 < trial.part < MOST_TRIES and (
        not trial.attempt or trial.message.startswith(RESUME_PROBLEM)
    ):
        _pause_again(plan, job, trial)
    elif not lasts(ended_at, plan.now, VERDICT):
        _fail(plan, job, TrialFailure.FAILED, trial.message)


def _pause_again(plan: StudyPlan, job: JobOf, trial: Trial) -> None:
    """Its job could not begin: the scheduler does not know the checkpoint yet, or it is gone."""
    paused = TrialPaused(
        study_id=job.study_id, number=job.number, step=trial.step, rung=trial.rung - 1
    )
    plan.add(job.study_id, paused)


def _complete(plan: StudyPlan, job: JobOf, trial: Trial) -> None:
    spec = plan.state.studies[job.study_id].spec
    values = result_of(spec, trial.values, trial.curve)
    if values is None:
        names = ", ".join(each.metric for each in spec.objective)
        message = f"its program ended well, but did not report {names}"
        _fail(plan, job, TrialFailure.NO_RESULT, message)
        return
    completed = TrialCompleted(
        study_id=job.study_id, number=job.number, step=trial.step, values=values
    )
    plan.add(job.study_id, completed)


def _fail(plan: StudyPlan, job: JobOf, why: TrialFailure, message: str) -> None:
    failed = TrialFailed(study_id=job.study_id, number=job.number, reason=why, message=message)
    plan.add(job.study_id, failed)


def _rejected(plan: StudyPlan, job: JobOf, trial: Trial, reason: str) -> None:
    """Its next trials would be rejected too, so the study ends, and paused trials with it."""
    plan.add(job.study_id, TrialJobEnded(**_of(job), state="rejected", message=reason))
    if trial.phase in {Phase.WAITING, Phase.RUNNING}:
        _fail(plan, job, TrialFailure.REJECTED, reason)
    if plan.state.studies[job.study_id].ending is None:
        name = job_id(job.study_id, job.number, job.part)
        message = f"the job {name} was rejected: {reason}"
        ending = StudyEnding(study_id=job.study_id, reason=EndReason.FAILED, message=message)
        plan.add(job.study_id, ending)
