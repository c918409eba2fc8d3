"""Decisions about attempts: which one may commit, and what its end gives up."""

from __future__ import annotations

from datetime import datetime

from gangline_bus.decision import Decision
from gangline_checkpoints.core import advice, promotions, references
from gangline_checkpoints.core.closing import abandoned, written
from gangline_checkpoints.core.deleting import deletions, no_longer_held
from gangline_checkpoints.core.model import Job, StepId
from gangline_checkpoints.core.policy.acceptance import refusal
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.state import CheckpointState
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


def note(
    state: CheckpointState, reports: Reports, event: GangAllocated, at: datetime
) -> list[Decision]:
    """Only this attempt can commit from here on.

    Open checkpoints of older attempts are abandoned, except one whose verification runs now. The
    verification may put a commit record, so it is abandoned and deleted after that.
    """
    job_id = event.job_id
    job = state.jobs.get(job_id, Job())
    if job_id in state.ended or job_id in state.archive or event.attempt <= job.attempt:
        return []
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
    )
    decisions = [
        Decision(job_id, noted),
        *advice.of_attempt(state, noted),
        *no_longer_held(state, job_id, job.resume, held_now=event.resume),
    ]
    for step_id in sorted(job.open):
        reason = None
        if step_id.attempt < event.attempt and step_id != job.verifying:
            reason = f"attempt {event.attempt} took over"
        elif step_id.attempt == event.attempt:
            reported = reports.of(job_id, step_id)
            refusals = [
                refusal(shard, prefix=prefix, world_size=event.world_size)
                for shard in reported.by_rank()
            ]
            reason = next((text for text in refusals if text is not None), None)
            if reason is None and reported.complete(event.world_size):
                decisions.append(written(job_id, step_id, event.world_size))
        if reason is not None:
            decisions.append(abandoned(reports, job_id, step_id, reason))
    return decisions


def _validated(event: GangAllocated) -> CheckpointRef | None:
    point = event.resume
    return point if event.spec.validates and point and point.job_id != event.job_id else None


def follow(state: CheckpointState, event: ResumePointChanged) -> list[Decision]:
    """The scheduler names the checkpoint that it starts from next: older ones may go now.

    A checkpoint that a user restores is protected as well: the gang that stops for it may save, and
    so push it out.
    """
    job_id, point = event.job_id, event.checkpoint
    job = state.find(job_id)
    if job is None or point is None or point.job_id != job_id:
        return []
    step_id = StepId(point.attempt, point.step)
    if not job.keeps(step_id):
        return []
    if event.restored:
        if job.final or point == job.restored:
            return []
        return [Decision(job_id, RestoreNoted(job_id=job_id, checkpoint=point))]
    if step_id == job.known:
        return []
    return [
        Decision(job_id, ResumeNoted(job_id=job_id, checkpoint=point)),
        *promotions.due(job_id, job, step_id, last=job.succeeded and step_id == job.newest),
        *deletions(state, job_id, job.kept, except_job="", known=step_id),
    ]


def release(state: CheckpointState, event: GangReleased, at: datetime) -> list[Decision]:
    """The attempt has ended; checkpoints that it wrote completely may still be committed.

    A job that starts again on its own has failed.
    """
    job = state.jobs.get(event.job_id)
    if job is None or event.attempt != job.attempt or not job.live:
        return []
    return _end(
        state,
        event.job_id,
        job,
        at,
        final=event.reason in _FINAL,
        failed=event.reason is ReleaseReason.RESTARTING and job.restored is None,
        succeeded=event.reason is ReleaseReason.SUCCEEDED,
    )


def damaged(state: CheckpointState, event: WorkerExited, key: str) -> list[Decision]:
    """A node could not start the attempt from a checkpoint of ours, as one object of it is bad."""
    job = state.find(event.job_id)
    if job is None:
        return []
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
                return [Decision(owner, event) for event in references.corrupted(found, corrupted)]
    return []


def end_job(state: CheckpointState, event: JobStateChanged, at: datetime) -> list[Decision]:
    """No further attempt comes."""
    job_id, succeeded = event.job_id, event.state is JobState.SUCCEEDED
    job = state.jobs.get(job_id)
    if job is None or job.final or not job.attempt:
        return []
    return _end(state, job_id, job, at, final=True, succeeded=succeeded)


def _end(
    state: CheckpointState,
    job_id: str,
    job: Job,
    at: datetime,
    *,
    final: bool,
    failed: bool = False,
    succeeded: bool = False,
) -> list[Decision]:
    ran_s = (at - job.allocated_at).total_seconds() if job.allocated_at is not None else 0.0
    ended = AttemptEnded(
        job_id=job_id,
        attempt=job.attempt,
        final=final,
        ran_s=max(0.0, ran_s),
        failed=failed,
        succeeded=succeeded,
    )
    if not final:
        # The scheduler may be about to start the next attempt from any of its checkpoints, or
        # again from where this one had started.
        return [Decision(job_id, ended)]
    decisions = [
        Decision(job_id, ended),
        *deletions(state, job_id, job.kept, except_job=job_id, over=True),
    ]
    if succeeded and job.known is not None and job.known == job.newest and job.verifying is None:
        decisions += promotions.due(job_id, job, job.known, last=True)
    if job.validates is None:
        decisions += no_longer_held(state, job_id, job.resume)
    return decisions  # what it validates is held until promotions.found
