"""Decisions about parts of checkpoints: on their nodes' disks first, then in the store."""

from __future__ import annotations

from datetime import datetime

from gangline_bus.decision import Decision
from gangline_checkpoints.attempts import abandoned
from gangline_checkpoints.model import Job, StepId
from gangline_checkpoints.policy.acceptance import refusal
from gangline_checkpoints.state import GRACE_S, CheckpointState
from gangline_schemas.events.checkpoints import (
    CheckpointSaved,
    NodeSaveRecorded,
    ShardRecorded,
)
from gangline_schemas.events.workers import (
    CheckpointShardLost,
    CheckpointShardWritten,
    NodeSaved,
)

MAX_OPEN = 16
"""Open checkpoints of one job. The oldest goes when a rank of the gang never writes its part."""


def decide(
    state: CheckpointState,
    event: NodeSaved | CheckpointShardWritten | CheckpointShardLost,
    now: datetime,
) -> list[Decision]:
    """What follows from what an agent says of a part."""
    match event:
        case NodeSaved():
            return _on_node(state, event)
        case CheckpointShardWritten():
            return _record(state, event, now)
        case CheckpointShardLost():
            return _lost(state, event)


def _record(state: CheckpointState, shard: CheckpointShardWritten, now: datetime) -> list[Decision]:
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


def _on_node(state: CheckpointState, saved: NodeSaved) -> list[Decision]:
    """Record that a node's ranks have saved; with all ranks it is committed on the nodes' disks.

    Only of the attempt that is known to be live: what this is for ends with it.
    """
    job = state.jobs.get(saved.job_id)
    if job is None or not job.live or saved.attempt != job.attempt:
        return []
    if job.newest is not None and StepId(saved.attempt, saved.step) <= job.newest:
        return []
    known = job.on_nodes.get(saved.step, frozenset())
    ranks = known.union(saved.ranks)
    if ranks == known or max(ranks) >= job.world_size:
        return []
    decisions = [Decision(saved.job_id, NodeSaveRecorded(saved=saved))]
    if len(ranks) == job.world_size:
        whole = CheckpointSaved(
            job_id=saved.job_id,
            attempt=saved.attempt,
            step=saved.step,
            world_size=job.world_size,
        )
        decisions.append(Decision(saved.job_id, whole))
    return decisions


def _lost(state: CheckpointState, part: CheckpointShardLost) -> list[Decision]:
    """Give up a checkpoint of the live attempt of which a part will never be in the store."""
    job, step_id = state.jobs.get(part.job_id), StepId(part.attempt, part.step)
    if job is None or not job.live or part.attempt != job.attempt:
        return []
    if step_id in job.closed or _known(job, step_id, part.rank):
        return []
    reason = f"rank {part.rank} of node {part.node_id}: {part.reason}"
    return [abandoned(part.job_id, step_id, reason)]


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
