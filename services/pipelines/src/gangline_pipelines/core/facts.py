"""Facts about the jobs of steps, from other services and the agents."""

from __future__ import annotations

from datetime import datetime, timedelta

from gangline_pipelines.core.graph import is_resumed
from gangline_pipelines.core.model import RunState, StepRun, StepState
from gangline_pipelines.core.state import PipelinePlan, graph_of_run, spec_of, step_key
from gangline_pipelines.core.stepping import advance, end_step, request_if_room, stop
from gangline_schemas.base import Event
from gangline_schemas.clocks import lasts
from gangline_schemas.events.faults import GangFailed
from gangline_schemas.events.pipelines import (
    StepCharged,
    StepDeferred,
    StepFailureNoted,
    StepJobEnded,
    StepJobRequested,
    StepKeyed,
    StepOutputNoted,
    StepSaveNoted,
    StepStudyEnded,
    StepStudyRequested,
)
from gangline_schemas.events.quota import JobRejected, RequestRefused
from gangline_schemas.events.scheduling import GangReleased, JobStateChanged, ResumePointChanged
from gangline_schemas.events.studies import StudyEnded, StudyRefused
from gangline_schemas.events.workers import StepOutputWritten
from gangline_schemas.job import RESUME_PROBLEM, JobState

CAUSE_WAIT = timedelta(seconds=15)
"""So long the cause of a failure is waited for: it comes in another log."""
SAVE_WAIT = timedelta(seconds=5)
"""So long a step that another one starts from waits for its last checkpoint to be committed."""
OUTPUTS_WAIT = timedelta(minutes=10)
"""So long outputs of a job that succeeded are waited for: its agent reported them before."""


def take(plan: PipelinePlan, event: Event) -> None:
    """Note what an event changes for the step of a job; other events lead to nothing."""
    match event:
        case JobStateChanged():
            if event.state.terminal:
                _job_ended(plan, event)
        case StepOutputWritten():
            _written(plan, event)
        case ResumePointChanged():
            _saved(plan, event)
        case GangFailed():
            _failed(plan, event)
        case GangReleased():
            _charged(plan, event)
        case StudyEnded():
            _study_ended(plan, event)
        case JobRejected() | RequestRefused() | StudyRefused():
            _refused(plan, event)
        case _:
            pass


def _refused(plan: PipelinePlan, event: JobRejected | RequestRefused | StudyRefused) -> None:
    match event:
        case JobRejected():
            _ended(plan, event.job_id, succeeded=False, reason=event.reason)
        case RequestRefused(request=StepJobRequested.type):
            _ended(plan, event.target, succeeded=False, reason=event.reason)
        case StudyRefused(request=StepStudyRequested.type):
            _ended(plan, event.study_id, succeeded=False, reason=event.reason)
        case _:
            pass


def tick(plan: PipelinePlan) -> None:
    """Try deferred steps again, and wait no longer for what did not come."""
    for run_id, name in [*plan.state.waiting.values()]:
        step = plan.state.steps[step_key(run_id, name)]
        if step.state is StepState.DEFERRED:
            if step.next_at is not None and not _waits(plan, run_id, name, step.next_at):
                request_if_room(plan, run_id, name)
        elif step.job_ended is not None and step.job_ended_at is not None:
            wait = OUTPUTS_WAIT if step.job_ended else CAUSE_WAIT
            if step.saved_step is not None:
                wait = min(wait, SAVE_WAIT)
            if not lasts(step.job_ended_at, plan.now, wait):
                conclude(plan, run_id, name, waited=True)


def _waits(plan: PipelinePlan, run_id: str, name: str, next_at: datetime) -> bool:
    """Whether the next try of a step lies ahead, and no farther than its file says."""
    retry = graph_of_run(plan.state, plan.state.runs[run_id]).instances[name].spec.retry
    wait = timedelta(minutes=retry.wait_minutes)
    return lasts(next_at - wait, plan.now, wait)


def _job_ended(plan: PipelinePlan, event: JobStateChanged) -> None:
    """A job that had GPUs or CPUs is charged before its step ends: its release comes next."""
    place = _note_end(
        plan,
        event.job_id,
        succeeded=event.state is JobState.SUCCEEDED,
        reason=event.reason,
        attempt=event.attempt,
    )
    if place is None:
        return
    charged = plan.state.steps[step_key(*place)].charged
    if event.previous is JobState.PENDING or charged >= event.attempt:
        conclude(plan, *place)


def _ended(plan: PipelinePlan, job_id: str, *, succeeded: bool, reason: str) -> None:
    place = _note_end(plan, job_id, succeeded=succeeded, reason=reason)
    if place is not None:
        conclude(plan, *place)


def _note_end(
    plan: PipelinePlan, job_id: str, *, succeeded: bool, reason: str, attempt: int = 0
) -> tuple[str, str] | None:
    """Note once how the job of a step ended; the step, or None if there is nothing to note."""
    place = plan.state.jobs.get(job_id)
    if place is None:
        return None
    run_id, name = place
    if plan.state.steps[step_key(run_id, name)].job_ended is not None:
        return None
    ended = StepJobEnded(
        run_id=run_id, step=name, job_id=job_id, succeeded=succeeded, reason=reason,
        attempt=attempt,
    )  # fmt: skip
    plan.add(run_id, ended)
    return place


def _written(plan: PipelinePlan, event: StepOutputWritten) -> None:
    """Note an output. Agents of two attempts may report in either order: the later one counts."""
    place = plan.state.jobs.get(event.job_id)
    if place is None:
        return
    run_id, name = place
    step = plan.state.steps[step_key(run_id, name)]
    declared = graph_of_run(plan.state, plan.state.runs[run_id]).instances[name].spec.outputs
    if event.name not in declared:
        return
    held = step.written_by.get(event.name, 0)
    if event.attempt < max(held, step.last_attempt):
        return
    if event.attempt == held and step.outputs.get(event.name) == event.artifact:
        return
    noted = StepOutputNoted(
        run_id=run_id, step=name, job_id=event.job_id, name=event.name, artifact=event.artifact,
        attempt=event.attempt,
    )  # fmt: skip
    plan.add(run_id, noted)
    if step.job_ended:
        conclude(plan, run_id, name)


def _study_ended(plan: PipelinePlan, event: StudyEnded) -> None:
    """A study is a success if a trial of it has completed."""
    place = plan.state.jobs.get(event.study_id)
    if place is None:
        return
    run_id, name = place
    ended = StepStudyEnded(run_id=run_id, step=name, study_id=event.study_id, best=event.best)
    plan.add(run_id, ended)
    good = event.best is not None
    reason = "" if good else f"no trial of its study completed: {event.reason}"
    _ended(plan, event.study_id, succeeded=good, reason=reason)


def _saved(plan: PipelinePlan, event: ResumePointChanged) -> None:
    """Note the newest checkpoint of a job from which another step starts."""
    place = plan.state.jobs.get(event.job_id)
    if place is None or event.checkpoint is None:
        return
    run_id, name = place
    step = plan.state.steps[step_key(run_id, name)]
    saved = event.checkpoint
    if step.saved_key == saved.commit_key or not _resumed(plan, run_id, name):
        return
    noted = StepSaveNoted(
        run_id=run_id, step=name, job_id=event.job_id, saved_step=saved.step,
        commit_key=saved.commit_key,
    )  # fmt: skip
    plan.add(run_id, noted)


def _resumed(plan: PipelinePlan, run_id: str, name: str) -> bool:
    return is_resumed(graph_of_run(plan.state, plan.state.runs[run_id]), name)


def _failed(plan: PipelinePlan, event: GangFailed) -> None:
    place = plan.state.jobs.get(event.job_id)
    if place is None or event.action != "fail":
        return
    run_id, name = place
    step = plan.state.steps[step_key(run_id, name)]
    if step.cause is event.cause:
        return
    noted = StepFailureNoted(run_id=run_id, step=name, job_id=event.job_id, cause=event.cause)
    plan.add(run_id, noted)
    if step.job_ended is False:
        conclude(plan, run_id, name)


def _charged(plan: PipelinePlan, event: GangReleased) -> None:
    place = plan.state.jobs.get(event.job_id)
    if place is None:
        return
    run_id, name = place
    if plan.state.steps[step_key(run_id, name)].charged >= event.attempt:
        return
    charged = StepCharged(
        run_id=run_id,
        step=name,
        job_id=event.job_id,
        attempt=event.attempt,
        gpu_seconds=event.gpu_seconds,
    )
    plan.add(run_id, charged)
    run = plan.state.runs[run_id]
    most = spec_of(plan.state, run).limits.gpu_hours
    over = most is not None and run.gpu_seconds > most * 3600 and run.state is RunState.RUNNING
    last = run.left == 1 and plan.state.steps[step_key(run_id, name)].job_ended is not None
    if over and not last:
        used = run.gpu_seconds / 3600
        stop(plan, run_id, "failed", f"the run used {used:.2f} GPU-hours of its {most:g}")
    conclude(plan, run_id, name)


def conclude(plan: PipelinePlan, run_id: str, name: str, *, waited: bool = False) -> None:
    """End a step, or try it again, if all that decides it is known, or was waited for."""
    run = plan.state.runs[run_id]
    step = plan.state.steps[step_key(run_id, name)]
    if step.job_ended is None or step.state is not StepState.RUNNING:
        return
    spec = graph_of_run(plan.state, run).instances[name].spec
    if step.job_ended:
        lacking = [output for output in spec.outputs if not _is_there(step, output)]
        saves = spec.study is None and _resumed(plan, run_id, name)
        if not lacking and saves and step.saved_step is None and waited:
            end_step(plan, run_id, name, "failed", "its job left no committed checkpoint")
        elif not lacking and (not saves or waited):
            _succeed(plan, run_id, name)
        elif lacking and waited and _gave_up(plan, step):
            why = f"its job succeeded, and its output {lacking[0]} was not reported"
            end_step(plan, run_id, name, "failed", why)
        return
    if run.state is RunState.STOPPING:
        end_step(plan, run_id, name, "cancelled" if step.stopping else "failed", step.reason)
        return
    retry = spec.retry
    left = step.tries - step.spared <= retry.max
    if left and retry.on and step.cause is None and not waited:
        return
    if left and (not retry.on or step.cause in retry.on):
        deferred = StepDeferred(
            run_id=run_id,
            step=name,
            tries=step.tries,
            reason=step.reason,
            next_at=plan.now + timedelta(minutes=retry.wait_minutes),
        )
        plan.add(run_id, deferred)
        if not retry.wait_minutes:
            request_if_room(plan, run_id, name)
        advance(plan, run_id, ())  # what is ready gets the room
        return
    end_step(plan, run_id, name, "failed", _why(step))


def _succeed(plan: PipelinePlan, run_id: str, name: str) -> None:
    """End a step well. If outputs of the team were deleted while its job ran, look for them first.

    While the deletion lasts, the step waits.
    """
    run, step = plan.state.runs[run_id], plan.state.steps[step_key(run_id, name)]
    sweep = plan.state.sweeps.get(run.team)
    began = step.started_at or plan.now
    if sweep is None or not step.outputs or run.state is not RunState.RUNNING:
        end_step(plan, run_id, name, "succeeded")
    elif sweep.ended_at is None:
        return
    elif sweep.ended_at <= began:
        end_step(plan, run_id, name, "succeeded")
    else:
        keyed = StepKeyed(
            run_id=run_id, step=name, key=step.key, parts=step.parts, hit=run_id,
            hit_job=step.job_id, hit_save=step.saved_key, outputs=step.outputs,
            check=run.asked + 1,
            reason="outputs of the team were deleted while its job ran; its own are looked for",
        )  # fmt: skip
        plan.add(run_id, keyed)
        advance(plan, run_id, graph_of_run(plan.state, run).feeds.get(name, ()))


def _is_there(step: StepRun, output: str) -> bool:
    """Whether the last attempt of a step's job wrote an output. Unknown attempts count as it."""
    earlier = 0 < step.written_by.get(output, 0) < step.last_attempt
    return output in step.outputs and not earlier


def _gave_up(plan: PipelinePlan, step: StepRun) -> bool:
    """Whether an output that was not reported is waited for no longer."""
    return step.job_ended_at is not None and not lasts(step.job_ended_at, plan.now, OUTPUTS_WAIT)


def _why(step: StepRun) -> str:
    start = step.starts_from
    if start is not None and step.reason.startswith(RESUME_PROBLEM):
        why = step.reason.removeprefix(RESUME_PROBLEM)
        return (
            f"resume: {start.model}@{start.alias} is version {start.version}, and no job can start "
            f"from its checkpoint: {why}; promote another version"
        )
    cause = f" ({step.cause.value.replace('_', ' ')})" if step.cause is not None else ""
    named = "" if start is None else f"; {start.model}@{start.alias} is version {start.version}"
    return f"{step.reason or 'its job failed'}{cause}{named}"
