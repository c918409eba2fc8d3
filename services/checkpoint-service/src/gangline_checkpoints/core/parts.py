"""Decisions about parts of checkpoints: on their nodes' disks first, then in the store."""

from __future__ import annotations

from datetime import datetime

from gangline_checkpoints.core.closing import abandon, write
from gangline_checkpoints.core.model import Job, StepId
from gangline_checkpoints.core.policy.acceptance import refusal
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.state import GRACE_S, CheckpointPlan
from gangline_schemas.events.checkpoints import CheckpointBegun, CheckpointSaved
from gangline_schemas.events.workers import CheckpointShardLost, CheckpointShardWritten, NodeSaved

Report = NodeSaved | CheckpointShardWritten | CheckpointShardLost
MAX_OPEN = 16
"""Open checkpoints of one job. The oldest goes when a rank of the gang never writes its part."""


def decide(plan: CheckpointPlan, event: Report, place: tuple[int, int]) -> None:
    """Decide upon an agent's report of a part, which lies at this partition and offset."""
    match event:
        case NodeSaved():
            _on_node(plan, event, place)
        case CheckpointShardWritten():
            _written(plan, event, place)
        case CheckpointShardLost():
            _lost(plan, event)


def _written(plan: CheckpointPlan, shard: CheckpointShardWritten, place: tuple[int, int]) -> None:
    """Count a part, once; the last one completes its checkpoint.

    The checkpoint of a part that can never be committed is abandoned at once, so that the objects
    are deleted, however late they came. While that deletion is at work it is noted (reports.py).
    """
    job_id, step_id = shard.job_id, StepId(shard.attempt, shard.step)
    if job_id in plan.state.ended:
        return
    job = plan.state.find(job_id)
    if job is not None and _known(plan.soft, job, shard):
        return
    if job is None or shard.attempt > job.attempt:
        # Its gang.allocated is on another topic: decided with it.
        _begin(plan, job_id, job or Job(), step_id, place)
        return
    reason = _hopeless(job, step_id, plan.now) or refusal(
        shard, prefix=job.prefix, world_size=job.world_size
    )
    if reason is not None:
        late = step_id not in job.open and step_id in job.deleting
        if not late:
            abandon(plan, job_id, step_id, reason, also=(shard.rank,))
        return
    _begin(plan, job_id, job, step_id, place)
    if plan.soft.of(job_id, step_id).complete(job.world_size, (shard.rank,)):
        write(plan, job_id, step_id, job.world_size)


def _on_node(plan: CheckpointPlan, saved: NodeSaved, place: tuple[int, int]) -> None:
    """Count a node whose ranks have saved; with all ranks it is committed on the nodes' disks.

    Only of the attempt that is known to be live: such a commit is useless after it.
    """
    job_id, step_id = saved.job_id, StepId(saved.attempt, saved.step)
    job = plan.state.jobs.get(job_id)
    if job is None or not job.live or saved.attempt != job.attempt:
        return
    if step_id in job.closed or (job.newest is not None and step_id <= job.newest):
        return
    opened, reported = job.open.get(step_id), plan.soft.of(job_id, step_id)
    if opened is not None and opened.saved:
        return
    if reported.on_nodes.issuperset(saved.ranks) or max(saved.ranks) >= job.world_size:
        return
    _begin(plan, job_id, job, step_id, place)
    if reported.on_all_nodes(job.world_size, saved.ranks):
        whole = CheckpointSaved(
            job_id=job_id,
            attempt=saved.attempt,
            step=saved.step,
            world_size=job.world_size,
        )
        plan.add(job_id, whole)


def _begin(
    plan: CheckpointPlan, job_id: str, job: Job, step_id: StepId, place: tuple[int, int]
) -> None:
    """The first report of a checkpoint in a partition: the reports are found there again."""
    partition, offset = place
    opened = job.open.get(step_id)
    if opened is not None and partition in opened.places:
        return
    event = CheckpointBegun(
        job_id=job_id,
        attempt=step_id.attempt,
        step=step_id.step,
        partition=partition,
        offset=offset,
    )
    plan.add(job_id, event)
    if opened is None and len(job.open) >= MAX_OPEN:
        oldest = min(other for other in job.open if other != job.verifying)
        reason = f"not all ranks had written when {MAX_OPEN} later ones came"
        abandon(plan, job_id, oldest, reason)


def _lost(plan: CheckpointPlan, part: CheckpointShardLost) -> None:
    """Give up a checkpoint of the live attempt of which a part will never be in the store."""
    job, step_id = plan.state.jobs.get(part.job_id), StepId(part.attempt, part.step)
    if job is None or not job.live or part.attempt != job.attempt:
        return
    if step_id in job.closed or _known(plan.soft, job, part):
        return
    reason = f"rank {part.rank} of node {part.node_id}: {part.reason}"
    abandon(plan, part.job_id, step_id, reason)


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
