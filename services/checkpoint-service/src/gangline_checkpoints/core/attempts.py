"""Decisions about attempts: which one may commit, and what its end gives up."""

from __future__ import annotations

from datetime import datetime

from gangline_checkpoints.core import advice, promotions, references
from gangline_checkpoints.core.closing import abandon, write
from gangline_checkpoints.core.deleting import delete_surplus, delete_unused
from gangline_checkpoints.core.model import Job, StepId
from gangline_checkpoints.core.policy.acceptance import refusal
from gangline_checkpoints.core.state import CheckpointPlan
from gangline_schemas.checkpoint import checkpoint_prefix, job_prefix
from gangline_schemas.events.checkpoints import (
    AttemptEnded,
    AttemptNoted,
    CheckpointCorrupted,
    RestoreNoted,
    ResumeNoted,
)
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    GangReleased,
    JobStateChanged,
    ReleaseReason,
    ResumePointChanged,
)
from gangline_schemas.events.workers import WorkerExited
from gangline_schemas.job import JobState

_FINAL = {ReleaseReason.SUCCEEDED, ReleaseReason.FAILED, ReleaseReason.CANCELLED}


def note(plan: CheckpointPlan, event: GangAllocated, at: datetime) -> None:
    """Only this attempt can commit from here on.

    Open checkpoints of older attempts are abandoned, except one whose verification runs now. The
    verification may put a commit record, so it is abandoned and deleted after that.
    """
    job_id, state = event.job_id, plan.state
    job = state.jobs.get(job_id, Job())
    if job_id in state.ended or job_id in state.archive or event.attempt <= job.attempt:
        return
    prefix = job_prefix(event.team, job_id, event.spec)
    noted = AttemptNoted(
        job_id=job_id,
        attempt=event.attempt,
        world_size=event.world_size,
        prefix=prefix,
        keep=event.spec.checkpoint.keep,
        resume=event.resume,
        allocated_at=at,
        full_every=event.spec.checkpoint.full_every,
        validates=_validated(event),
        spec=None if event.spec.checkpoint.promote == "off" else event.spec,
        cpu_only=event.spec.resources.gpus == 0,
    )
    advised = advice.of_attempt(state, noted)
    plan.add(job_id, noted)
    if advised is not None:
        plan.add(job_id, advised)
    delete_unused(plan, job_id, job.resume)
    for step_id in sorted(job.open):
        reason = None
        if step_id.attempt < event.attempt and step_id != job.verifying:
            reason = f"attempt {event.attempt} took over"
        elif step_id.attempt == event.attempt:
            reported = plan.soft.of(job_id, step_id)
            refusals = [
                refusal(shard, prefix=prefix, world_size=event.world_size)
                for shard in reported.by_rank()
            ]
            reason = next((text for text in refusals if text is not None), None)
            if reason is None and reported.complete(event.world_size):
                write(plan, job_id, step_id, event.world_size)
        if reason is not None:
            abandon(plan, job_id, step_id, reason)


def _validated(event: GangAllocated) -> CheckpointRef | None:
    point = event.resume
    return point if event.spec.validates and point and point.job_id != event.job_id else None


def follow(plan: CheckpointPlan, event: ResumePointChanged) -> None:
    """The scheduler names the checkpoint that it starts from next: older ones may go now.

    A checkpoint that a user restores is protected as well: the gang that stops for it may save, and
    so push it out.
    """
    job_id, point = event.job_id, event.checkpoint
    job = plan.state.find(job_id)
    if job is None or point is None or point.job_id != job_id:
        return
    step_id = StepId(point.attempt, point.step)
    if not job.keeps(step_id):
        return
    if event.restored:
        if not job.final and point != job.restored:
            plan.add(job_id, RestoreNoted(job_id=job_id, checkpoint=point))
    elif step_id != job.known:
        plan.add(job_id, ResumeNoted(job_id=job_id, checkpoint=point))
        last = job.succeeded and step_id == job.newest
        promotions.request(plan, job_id, job, step_id, last=last)
        delete_surplus(plan, job_id)


def release(plan: CheckpointPlan, event: GangReleased, at: datetime) -> None:
    """The attempt has ended; checkpoints that it wrote completely may still be committed.

    A job that starts again on its own has failed.
    """
    job = plan.state.jobs.get(event.job_id)
    if job is None or event.attempt != job.attempt or not job.live:
        return
    _end(
        plan,
        event.job_id,
        job,
        at,
        final=event.reason in _FINAL,
        failed=event.reason is ReleaseReason.RESTARTING and job.restored is None,
        succeeded=event.reason is ReleaseReason.SUCCEEDED,
    )


def damaged(plan: CheckpointPlan, event: WorkerExited, key: str) -> None:
    """A node could not start the attempt from a checkpoint of ours, as one object of it is bad."""
    state = plan.state
    job = state.find(event.job_id)
    if job is None:
        return
    owners = {event.job_id} | ({job.resume.job_id} if job.resume is not None else set())
    for owner in sorted(owners):
        found = state.find(owner) or Job()
        for kept in found.kept:
            prefix = checkpoint_prefix(found.prefix, kept.id.attempt, kept.id.step)
            if kept.healthy and key.rpartition("/")[0] == prefix:
                corrupted = CheckpointCorrupted(
                    job_id=owner,
                    attempt=kept.id.attempt,
                    step=kept.id.step,
                    key=key,
                    reason=f"node {event.node_id} did not find the bytes that were committed",
                )
                for each in references.corrupted(found, corrupted):
                    plan.add(owner, each)
                return


def end_job(plan: CheckpointPlan, event: JobStateChanged, at: datetime) -> None:
    """No further attempt comes."""
    job_id, succeeded = event.job_id, event.state is JobState.SUCCEEDED
    job = plan.state.jobs.get(job_id)
    if job is not None and not job.final and job.attempt:
        _end(plan, job_id, job, at, final=True, succeeded=succeeded)


def _end(
    plan: CheckpointPlan,
    job_id: str,
    job: Job,
    at: datetime,
    *,
    final: bool,
    failed: bool = False,
    succeeded: bool = False,
) -> None:
    ran_s = (at - job.allocated_at).total_seconds() if job.allocated_at is not None else 0.0
    ended = AttemptEnded(
        job_id=job_id,
        attempt=job.attempt,
        final=final,
        ran_s=max(0.0, ran_s),
        failed=failed,
        succeeded=succeeded,
    )
    plan.add(job_id, ended)
    if not final:
        # The scheduler may be about to start the next attempt from any of its checkpoints, or
        # again from where this one had started.
        return
    delete_surplus(plan, job_id, over=True)
    if succeeded and job.known is not None and job.known == job.newest and job.verifying is None:
        promotions.request(plan, job_id, job, job.known, last=True)
    if job.validates is None:  # what it validates is held until promotions.judge
        delete_unused(plan, job_id, job.resume)
