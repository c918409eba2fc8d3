"""Where a job's next attempt starts: the newest committed checkpoint that still stands."""

from __future__ import annotations

from gangline_scheduler.core.model import Job
from gangline_scheduler.core.plan import Plan
from gangline_schemas.events.checkpoints import (
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointDeleted,
    CheckpointSaved,
    IntervalAdvised,
)
from gangline_schemas.events.scheduling import (
    CheckpointIntervalChanged,
    CheckpointRef,
    GangSaved,
    ResumePointChanged,
)
from gangline_schemas.events.workers import WorkerExited
from gangline_schemas.job import RESUME_PROBLEM, JobState

Lost = CheckpointDeleted | CheckpointCorrupted | CheckpointRef
"""Each names the checkpoint that is lost by job, attempt and step."""


def committed(plan: Plan, event: CheckpointCommitted) -> None:
    """Take a checkpoint of the newest attempt, or of the one before, that leads further.

    One from before a restore never counts: the user chose to go back behind it.
    """
    job, point = plan.state.jobs.get(event.job_id), event.checkpoint
    if job is None:
        _committed_late(plan, event)
        return
    if job.state.terminal:
        return
    if not max(job.commits_from, job.attempt - 1) <= point.attempt <= job.attempt:
        return
    newest = job.checkpoints[-1] if job.checkpoints else None
    if newest is not None and point.step <= newest.step:
        return
    plan.add(job.job_id, ResumePointChanged(job_id=job.job_id, checkpoint=point))


def saved(plan: Plan, event: CheckpointSaved) -> None:
    """Note the newest checkpoint that lies on the live gang's nodes, on its way to the store."""
    job = plan.state.jobs.get(event.job_id)
    if job is None or job.gang is None or job.gang.attempt != event.attempt:
        return
    if job.gang.saved is None or event.step > job.gang.saved.step:
        plan.add(job.job_id, GangSaved(job_id=job.job_id, attempt=event.attempt, step=event.step))


def advised(plan: Plan, event: IntervalAdvised) -> None:
    """Let the next attempt save as often as that, if the job's spec wants it."""
    job = plan.state.jobs.get(event.job_id)
    if job is None or job.state.terminal or not job.spec.checkpoint.adapt_interval:
        return
    if event.interval_s != job.checkpoint_interval_s:
        plan.add(
            job.job_id,
            CheckpointIntervalChanged(job_id=job.job_id, interval_s=event.interval_s),
        )


def damaged(plan: Plan, report: WorkerExited, key: str) -> None:
    """A rank of the live gang could not start, as the object `key` of its checkpoint is damaged.

    The checkpoint service will report it too, maybe after the fault manager's verdict. So a
    checkpoint of the job itself that has the object no longer counts, and the next attempt does not
    resume from it. For a checkpoint of another run the scheduler waits for the service's event.
    """
    job = plan.state.jobs.get(report.job_id)
    if job is None or job.gang is None or job.gang.attempt != report.attempt:
        return
    for point in job.checkpoints:
        if point.commit_key.rpartition("/")[0] == key.rpartition("/")[0]:
            lost(plan, point)


def lost(plan: Plan, event: Lost) -> None:
    """Never start from it again; fall back to the newest one that is left.

    A job that is to begin from another run's checkpoint takes that run's newest, or fails once it
    waits: it never silently begins from zero. Cost: O(active jobs), as any may begin from
    another's.
    """
    ended = plan.state.ended.get(event.job_id)
    source = plan.state.jobs.get(event.job_id) or ended
    others = source.checkpoints if source is not None else ()
    forgotten = _named(ended.checkpoints, event) if ended is not None else None
    if forgotten is not None:
        plan.add(
            event.job_id,
            ResumePointChanged(job_id=event.job_id, checkpoint=None, forgotten=forgotten),
        )
    for job_id in sorted(plan.state.jobs):
        job = plan.state.jobs[job_id]
        gone = _matching(job, event)
        if gone is None or job.state.terminal:
            continue
        left = tuple(point for point in job.checkpoints if point != gone)
        base = job.base
        if base == gone:
            fixed = job.spec.checkpoint.resume.isdigit()
            base = next((at for at in reversed(others) if at != gone and not fixed), None)
        plan.add(
            job_id,
            ResumePointChanged(
                job_id=job_id, checkpoint=left[-1] if left else base, forgotten=gone
            ),
        )
        fail_without_start(plan, job_id)


def fail_without_start(plan: Plan, job_id: str) -> None:
    """A waiting job that was to begin from another run's checkpoint, and has none left, fails."""
    job = plan.state.jobs[job_id]
    source = job.spec.resume_from
    if source is not None and job.resume is None and job.gang is None and not job.state.terminal:
        plan.move(
            job_id, JobState.FAILED, f"{RESUME_PROBLEM}the checkpoint of run {source} is gone"
        )


def _committed_late(plan: Plan, event: CheckpointCommitted) -> None:
    """A run that has ended is begun from its last checkpoint, which is verified after its end."""
    run, point = plan.state.ended.get(event.job_id), event.checkpoint
    if run is None:
        return
    newest = run.checkpoints[-1] if run.checkpoints else None
    if newest is None or (point.attempt, point.step) > (newest.attempt, newest.step):
        plan.add(event.job_id, ResumePointChanged(job_id=event.job_id, checkpoint=point))


def _matching(job: Job, event: Lost) -> CheckpointRef | None:
    base = () if job.base is None else (job.base,)
    return _named((*job.checkpoints, *base), event)


def _named(points: tuple[CheckpointRef, ...], event: Lost) -> CheckpointRef | None:
    for point in points:
        if (point.job_id, point.attempt, point.step) == (event.job_id, event.attempt, event.step):
            return point
    return None
