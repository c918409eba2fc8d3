"""Jobs: the queue, their states, and the checkpoints that they may resume from."""

from __future__ import annotations

from datetime import datetime

from gangline_scheduler.core.ended_runs import EndedRun
from gangline_scheduler.core.evolve.registry import fold
from gangline_scheduler.core.model import Job, StartEstimate, Waiting
from gangline_scheduler.core.state import State
from gangline_scheduler.core.values import replace
from gangline_schemas.events.scheduling import (
    CheckpointIntervalChanged,
    CheckpointRef,
    JobQueued,
    JobReprioritized,
    JobStateChanged,
    JobWaiting,
    ResumePointChanged,
)
from gangline_schemas.job import JobState
from gangline_schemas.memory import forget_old

CHECKPOINTS_KEPT = 64
EVERY_KTH_KEPT = 1000
ENDED_CHECKPOINTS_KEPT = 8


@fold.on(JobQueued)
def _(state: State, event: JobQueued, at: datetime) -> None:
    job = Job(
        job_id=event.job_id,
        spec=event.spec,
        user=event.user,
        submitted_at=event.submitted_at,
        priority=event.spec.priority,
        state=JobState.PENDING,
        waiting_since=min(event.waits_since or at, at),
    )
    state.jobs[event.job_id] = job
    _wait(state, job)


@fold.on(JobWaiting)
def _(state: State, event: JobWaiting, at: datetime) -> None:
    job = state.jobs[event.job_id]
    waiting, estimate = Waiting(event.code, event.message, at), job.start_estimate
    if event.eta is not None and estimate is None:
        estimate = StartEstimate(event.eta, at)
        if job.waiting is not None and job.waiting.message == event.message:
            waiting = job.waiting
    put_job(state, replace(job, waiting=waiting, start_estimate=estimate))


@fold.on(JobReprioritized)
def _(state: State, event: JobReprioritized, _at: datetime) -> None:
    put_job(state, replace(state.jobs[event.job_id], priority=event.priority))


@fold.on(JobStateChanged)
def _(state: State, event: JobStateChanged, at: datetime) -> None:
    job = state.jobs[event.job_id]
    if event.state is JobState.PENDING:
        if event.previous is JobState.PENDING:
            job = replace(job, state=event.state)
        else:
            job = replace(
                job, state=event.state, waiting_since=at, waiting=None, start_estimate=None
            )
        put_job(state, job)
        if not state.is_pending(event.job_id):
            _wait(state, job)
    else:
        job = replace(job, state=event.state)
        _wait_no_more(state, event.job_id)
        state.jobs[event.job_id] = job
    drop_if_over(state, job, at)


@fold.on(ResumePointChanged)
def _(state: State, event: ResumePointChanged, at: datetime) -> None:
    job = state.jobs.get(event.job_id)
    if job is None:
        _change_ended(state, event)
        return
    gone, point = event.forgotten, event.checkpoint
    kept = job.checkpoints
    if gone is not None:
        kept = tuple(known for known in kept if known != gone)
    base = None if job.base == gone else job.base
    if point is not None and point.job_id != job.job_id:
        base = point
    elif point is not None and not _leads_further(point, kept) and point in kept:
        kept = kept[: kept.index(point) + 1]
    elif point is not None:
        keep = job.spec.checkpoint.keep
        most = max(CHECKPOINTS_KEPT, keep.latest) if keep.every is None else EVERY_KTH_KEPT
        kept = (*kept, point)[-most:]
    saved = point is not None and point.job_id == job.job_id and not event.restored
    put_job(
        state,
        replace(
            job,
            checkpoints=kept,
            base=base,
            saved_at=at if saved else job.saved_at,
            restored=event.restored or job.restored,
            commits_from=job.attempt + 1 if event.restored else job.commits_from,
        ),
    )


@fold.on(CheckpointIntervalChanged)
def _(state: State, event: CheckpointIntervalChanged, _at: datetime) -> None:
    job = state.jobs.get(event.job_id)
    if job is not None:
        put_job(state, replace(job, checkpoint_interval_s=event.interval_s))


def put_job(state: State, job: Job) -> None:
    """Keep a job as it is now, and its place in the queue."""
    if job.job_id in state.pending:
        state.queue.replace(state.jobs[job.job_id], job)
    elif job.job_id in state.cpu_pending:
        state.cpu_queue.replace(state.jobs[job.job_id], job)
    state.jobs[job.job_id] = job


def _wait(state: State, job: Job) -> None:
    if job.cpu_only:
        state.cpu_pending[job.job_id] = None
        state.cpu_queue.add(job)
        return
    state.pending[job.job_id] = None
    state.queue.add(job)
    if job.restarting:
        state.restarting[job.job_id] = None


def _wait_no_more(state: State, job_id: str) -> None:
    if job_id in state.pending:
        del state.pending[job_id]
        state.queue.remove(state.jobs[job_id])
        state.restarting.pop(job_id, None)
    elif job_id in state.cpu_pending:
        del state.cpu_pending[job_id]
        state.cpu_queue.remove(state.jobs[job_id])


def _leads_further(point: CheckpointRef, kept: tuple[CheckpointRef, ...]) -> bool:
    """Whether it is a new one; those that are kept stand in the order of their steps."""
    return not kept or point.step > kept[-1].step


def _change_ended(state: State, event: ResumePointChanged) -> None:
    """Others may begin from an ended run; of what a trial copy does not hold, nothing is kept."""
    run = state.ended.get(event.job_id)
    if run is None:
        return
    points = tuple(point for point in run.checkpoints if point != event.forgotten)
    if event.checkpoint is not None:
        points = (*points, event.checkpoint)[-ENDED_CHECKPOINTS_KEPT:]
    state.ended[event.job_id] = EndedRun.of(run.team, run.ended_at, points)


def drop_if_over(state: State, job: Job, at: datetime) -> None:
    """A job leaves the working set when it has ended and its gang is released, in any order."""
    if not job.state.terminal or job.gang is not None:
        return
    del state.jobs[job.job_id]
    state.ended[job.job_id] = EndedRun.of(job.team, at, job.checkpoints[-ENDED_CHECKPOINTS_KEPT:])
    forget_old(state.ended, lambda run: run.ended_at, at)
