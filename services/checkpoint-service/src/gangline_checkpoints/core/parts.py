"""Decisions about parts of checkpoints: on their nodes' disks first, then in the store."""

from __future__ import annotations

from datetime import datetime

from gangline_bus.decision import Decision
from gangline_checkpoints.core.closing import abandoned, written
from gangline_checkpoints.core.model import Job, StepId
from gangline_checkpoints.core.policy.acceptance import refusal
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.state import GRACE_S, CheckpointState
from gangline_schemas.events.checkpoints import (
    CheckpointBegun,
    CheckpointSaved,
)
from gangline_schemas.events.workers import (
    CheckpointShardLost,
    CheckpointShardWritten,
    NodeSaved,
)

Report = NodeSaved | CheckpointShardWritten | CheckpointShardLost
MAX_OPEN = 16
"""Open checkpoints of one job. The oldest goes when a rank of the gang never writes its part."""


def decide(
    state: CheckpointState,
    reports: Reports,
    event: Report,
    place: tuple[int, int],
    now: datetime,
) -> list[Decision]:
    """The decisions on an agent's report of a part, which lies at this partition and offset."""
    match event:
        case NodeSaved():
            return _on_node(state, reports, event, place)
        case CheckpointShardWritten():
            return _written(state, reports, event, place, now)
        case CheckpointShardLost():
            return _lost(state, reports, event)


def _written(
    state: CheckpointState,
    reports: Reports,
    shard: CheckpointShardWritten,
    place: tuple[int, int],
    now: datetime,
) -> list[Decision]:
    """Count a part, once; the last one completes its checkpoint.

    The checkpoint of a part that can never be committed is abandoned at once, so that the objects
    are deleted, however late they came. While that deletion is at work it is noted (reports.py).
    """
    job_id, step_id = shard.job_id, StepId(shard.attempt, shard.step)
    if job_id in state.ended:
        return []
    job = state.find(job_id)
    if job is None:
        return _begun(reports, job_id, Job(), step_id, place)
    if _known(reports, job, shard):
        return []
    if shard.attempt > job.attempt:  # its gang.allocated is on another topic: decided with it
        return _begun(reports, job_id, job, step_id, place)
    reason = _hopeless(job, step_id, now) or refusal(
        shard, prefix=job.prefix, world_size=job.world_size
    )
    if reason is not None:
        late = step_id not in job.open and step_id in job.deleting
        return [] if late else [abandoned(reports, job_id, step_id, reason, also=(shard.rank,))]
    decisions = _begun(reports, job_id, job, step_id, place)
    if reports.of(job_id, step_id).complete(job.world_size, (shard.rank,)):
        decisions.append(written(job_id, step_id, job.world_size))
    return decisions


def _on_node(
    state: CheckpointState, reports: Reports, saved: NodeSaved, place: tuple[int, int]
) -> list[Decision]:
    """Count a node whose ranks have saved; with all ranks it is committed on the nodes' disks.

    Only of the attempt that is known to be live: such a commit is useless after it.
    """
    job_id, step_id = saved.job_id, StepId(saved.attempt, saved.step)
    job = state.jobs.get(job_id)
    if job is None or not job.live or saved.attempt != job.attempt:
        return []
    if step_id in job.closed or (job.newest is not None and step_id <= job.newest):
        return []
    opened, reported = job.open.get(step_id), reports.of(job_id, step_id)
    if opened is not None and opened.saved:
        return []
    if reported.on_nodes.issuperset(saved.ranks) or max(saved.ranks) >= job.world_size:
        return []
    decisions = _begun(reports, job_id, job, step_id, place)
    if reported.on_all_nodes(job.world_size, saved.ranks):
        whole = CheckpointSaved(
            job_id=job_id,
            attempt=saved.attempt,
            step=saved.step,
            world_size=job.world_size,
        )
        decisions.append(Decision(job_id, whole))
    return decisions


def _begun(
    reports: Reports, job_id: str, job: Job, step_id: StepId, place: tuple[int, int]
) -> list[Decision]:
    """The first report of a checkpoint in a partition: the reports are found there again."""
    partition, offset = place
    opened = job.open.get(step_id)
    if opened is not None and partition in opened.places:
        return []
    event = CheckpointBegun(
        job_id=job_id,
        attempt=step_id.attempt,
        step=step_id.step,
        partition=partition,
        offset=offset,
    )
    decisions = [Decision(job_id, event)]
    if opened is None and len(job.open) >= MAX_OPEN:
        oldest = min(other for other in job.open if other != job.verifying)
        reason = f"not all ranks had written when {MAX_OPEN} later ones came"
        decisions.append(abandoned(reports, job_id, oldest, reason))
    return decisions


def _lost(state: CheckpointState, reports: Reports, part: CheckpointShardLost) -> list[Decision]:
    """Give up a checkpoint of the live attempt of which a part will never be in the store."""
    job, step_id = state.jobs.get(part.job_id), StepId(part.attempt, part.step)
    if job is None or not job.live or part.attempt != job.attempt:
        return []
    if step_id in job.closed or _known(reports, job, part):
        return []
    reason = f"rank {part.rank} of node {part.node_id}: {part.reason}"
    return [abandoned(reports, part.job_id, step_id, reason)]


def _known(reports: Reports, job: Job, part: CheckpointShardWritten | CheckpointShardLost) -> bool:
    step_id = StepId(part.attempt, part.step)
    if step_id == job.verifying or job.keeps(step_id) or job.knew(step_id, part.rank):
        return True
    late = reports.late.get((part.job_id, step_id), ())
    return part.rank in reports.of(part.job_id, step_id).shards or part.rank in late


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
