"""Decisions about attempts: which one may commit, and what its end gives up."""

from __future__ import annotations

from datetime import datetime

from gangline_bus.decision import Decision
from gangline_checkpoints import advice, references
from gangline_checkpoints.model import Job, Kept, StepId
from gangline_checkpoints.policy.acceptance import refusal
from gangline_checkpoints.policy.retention import surplus
from gangline_checkpoints.state import CheckpointState
from gangline_schemas.checkpoint import checkpoint_prefix, job_prefix
from gangline_schemas.events.checkpoints import (
    AttemptEnded,
    AttemptNoted,
    CheckpointAbandoned,
    CheckpointCorrupted,
    CheckpointDeleted,
    RestoreNoted,
    ResumeNoted,
)
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    GangReleased,
    ReleaseReason,
    ResumePointChanged,
)
from gangline_schemas.events.workers import WorkerExited

_REPLACED = "newer checkpoints replace it"
_CORRUPTED = "it is corrupted, and a newer one is healthy"
_FINAL = {ReleaseReason.SUCCEEDED, ReleaseReason.FAILED, ReleaseReason.CANCELLED}


def note(state: CheckpointState, event: GangAllocated, at: datetime) -> list[Decision]:
    """Only this attempt can commit from here on.

    What older attempts left open is abandoned, but for what is being verified right now: its
    verification may put a commit record, so it is abandoned and deleted when that has ended.
    """
    job_id = event.job_id
    job = state.jobs.get(job_id, Job())
    if job_id in state.ended or event.attempt <= job.attempt:
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
            shards = [shard for _, shard in sorted(job.open[step_id].shards.items())]
            refusals = [
                refusal(shard, prefix=prefix, world_size=event.world_size) for shard in shards
            ]
            reason = next((text for text in refusals if text is not None), None)
        if reason is not None:
            decisions.append(abandoned(job_id, step_id, reason))
    return decisions


def follow(state: CheckpointState, event: ResumePointChanged) -> list[Decision]:
    """The scheduler names the checkpoint that it starts from next: what is older may go now.

    What a user restores is held as well: the gang that stops for it may save, and so push it out.
    """
    job_id, point = event.job_id, event.checkpoint
    job = state.jobs.get(job_id)
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
        *deletions(state, job_id, job.kept, but_for="", known=step_id),
    ]


def release(state: CheckpointState, event: GangReleased, at: datetime) -> list[Decision]:
    """The attempt runs no more; what it wrote completely may still be committed.

    A job that starts again without being told to has failed.
    """
    job = state.jobs.get(event.job_id)
    if job is None or event.attempt != job.attempt or not job.live:
        return []
    failed = event.reason is ReleaseReason.RESTARTING and job.restored is None
    return _end(state, event.job_id, job, at, final=event.reason in _FINAL, failed=failed)


def damaged(state: CheckpointState, event: WorkerExited, key: str) -> list[Decision]:
    """A node could not start the attempt from a checkpoint of ours, as one object of it is bad."""
    job = state.jobs.get(event.job_id)
    if job is None:
        return []
    owners = {event.job_id} | ({job.resume.job_id} if job.resume is not None else set())
    for owner in sorted(owners & state.jobs.keys()):
        for kept in state.jobs[owner].kept:
            prefix = checkpoint_prefix(state.jobs[owner].prefix, kept.id.attempt, kept.id.step)
            if kept.healthy and key.rpartition("/")[0] == prefix:
                corrupted = CheckpointCorrupted(
                    job_id=owner,
                    attempt=kept.id.attempt,
                    step=kept.id.step,
                    key=key,
                    reason=f"node {event.node_id} did not find the bytes that were committed",
                )
                return [
                    Decision(owner, event)
                    for event in references.corrupted(state.jobs[owner], corrupted)
                ]
    return []


def end_job(state: CheckpointState, job_id: str, at: datetime) -> list[Decision]:
    """No further attempt comes."""
    job = state.jobs.get(job_id)
    if job is None or job.final or not job.attempt:
        return []
    return _end(state, job_id, job, at, final=True)


def abandoned(job_id: str, step_id: StepId, reason: str) -> Decision:
    """The open checkpoint will never be committed."""
    event = CheckpointAbandoned(
        job_id=job_id, attempt=step_id.attempt, step=step_id.step, reason=reason
    )
    return Decision(job_id, event)


def deletions(
    state: CheckpointState,
    job_id: str,
    kept: list[Kept],
    *,
    but_for: str,
    held_now: CheckpointRef | None = None,
    known: StepId | None = None,
    over: bool = False,
) -> list[Decision]:
    """What of `kept` falls out of the job's retention, when `but_for` holds `held_now` alone.

    `known` is what the scheduler names now, None: the same as before. `over`: the job ends.
    """
    job = state.jobs[job_id]
    held = state.held(but_for=but_for).get(job_id, set())
    if held_now is not None and held_now.job_id == job_id:
        held.add(StepId(held_now.attempt, held_now.step))
    damaged = {item.id for item in kept if not item.healthy}
    return [
        Decision(
            job_id,
            CheckpointDeleted(
                job_id=job_id,
                attempt=step_id.attempt,
                step=step_id.step,
                reason=_CORRUPTED if step_id in damaged else _REPLACED,
            ),
        )
        for step_id in references.let_go(
            job, kept, surplus(kept, job.keep, held, known=known or job.known), over=over
        )
    ]


def no_longer_held(
    state: CheckpointState,
    job_id: str,
    resume: CheckpointRef | None,
    *,
    held_now: CheckpointRef | None = None,
) -> list[Decision]:
    """What another job kept only because this one, which holds `held_now`, had started from it."""
    if resume is None or resume.job_id == job_id or resume.job_id not in state.jobs:
        return []
    kept = state.jobs[resume.job_id].kept
    return deletions(state, resume.job_id, kept, but_for=job_id, held_now=held_now)


def _end(
    state: CheckpointState,
    job_id: str,
    job: Job,
    at: datetime,
    *,
    final: bool,
    failed: bool = False,
) -> list[Decision]:
    ran_s = (at - job.allocated_at).total_seconds() if job.allocated_at is not None else 0.0
    ended = AttemptEnded(
        job_id=job_id, attempt=job.attempt, final=final, ran_s=max(0.0, ran_s), failed=failed
    )
    if not final:
        # The scheduler may be about to start the next attempt from any of its checkpoints, or
        # again from where this one had started.
        return [Decision(job_id, ended)]
    return [
        Decision(job_id, ended),
        *deletions(state, job_id, job.kept, but_for=job_id, over=True),
        *no_longer_held(state, job_id, job.resume),
    ]
