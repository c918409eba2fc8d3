"""Decisions about parts of checkpoints as ranks report them."""

from __future__ import annotations

from datetime import datetime

from gangline_bus.decision import Decision
from gangline_checkpoints.attempts import abandoned
from gangline_checkpoints.model import Job, StepId
from gangline_checkpoints.policy.acceptance import refusal
from gangline_checkpoints.state import GRACE_S, CheckpointState
from gangline_schemas.events.checkpoints import ShardRecorded
from gangline_schemas.events.workers import CheckpointShardWritten

MAX_OPEN = 16
"""Open checkpoints of one job. The oldest goes when a rank of the gang never writes its part."""


def record(state: CheckpointState, shard: CheckpointShardWritten, now: datetime) -> list[Decision]:
    """Record a part, once.

    What can never be committed is recorded and abandoned at once, so that its objects are
    deleted, however late they came.
    """
    job = state.jobs.get(shard.job_id)
    if shard.job_id in state.ended:
        return []
    recorded = Decision(shard.job_id, ShardRecorded(shard=shard))
    if job is None:
        return [recorded]
    step_id = StepId(shard.attempt, shard.step)
    if _known(job, step_id, shard.rank):
        return []
    if shard.attempt > job.attempt:  # its gang.allocated is on another topic: decided with it
        return [recorded, *_too_many(shard.job_id, job, step_id)]
    reason = _hopeless(job, step_id, now) or refusal(
        shard, prefix=job.prefix, world_size=job.world_size
    )
    if reason is not None:
        return [recorded, abandoned(shard.job_id, step_id, reason)]
    return [recorded, *_too_many(shard.job_id, job, step_id)]


def _known(job: Job, step_id: StepId, rank: int) -> bool:
    if step_id == job.verifying or job.keeps(step_id):
        return True
    opened = job.open.get(step_id)
    recorded = opened is not None and rank in opened.shards
    return recorded or rank in job.closed.get(step_id, frozenset())


def _hopeless(job: Job, step_id: StepId, now: datetime) -> str | None:
    if step_id.attempt < job.attempt:
        return f"attempt {job.attempt} took over"
    if step_id in job.closed:
        return "this part came after its checkpoint was given up"
    if job.newest is not None and step_id < job.newest:
        return f"step {job.newest.step} is committed already"
    if job.final and job.ended_at is not None and (now - job.ended_at).total_seconds() >= GRACE_S:
        return "the job ended long ago"
    return None


def _too_many(job_id: str, job: Job, step_id: StepId) -> list[Decision]:
    if step_id in job.open or len(job.open) < MAX_OPEN:
        return []
    oldest = min(other for other in job.open if other != job.verifying)
    return [abandoned(job_id, oldest, f"not all ranks had written when {MAX_OPEN} later ones came")]
