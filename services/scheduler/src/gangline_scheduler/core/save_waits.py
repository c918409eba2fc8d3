"""A gang that failed while its newest checkpoint was on its way to the store.

Its nodes live and have all of that checkpoint on their disks: committed there. An attempt that
began at once would resume from an older checkpoint and repeat the steps since. So the gang keeps
its GPUs, its agents end its ranks, and the next attempt begins once the checkpoint is in the store.
It waits no longer than the repeated work would take.
"""

from __future__ import annotations

from datetime import timedelta

from gangline_scheduler.core.model import Gang, Job, Saved
from gangline_scheduler.core.plan import Plan
from gangline_schemas.events.checkpoints import CheckpointAbandoned
from gangline_schemas.events.faults import FailureCause, GangFailed
from gangline_schemas.events.scheduling import GangStopping, StopReason, Verdict
from gangline_schemas.job import JobState

_NONE = timedelta(0)


def begin(plan: Plan, job: Job, failure: GangFailed, most: timedelta) -> bool:
    """Let a gang that failed wait for what it saved, `most` at most; whether it does."""
    gang, saved = job.gang, _on_its_way(job)
    if gang is None or saved is None or failure.cause is FailureCause.NODE:
        return False
    wait = min(_gained(job, gang, saved), most)
    if wait <= _NONE or not _live(plan, gang):
        return False
    waiting = GangStopping(
        job_id=job.job_id,
        attempt=gang.attempt,
        reason=StopReason.FAILED,
        deadline=plan.now + wait,
        verdict=Verdict(
            message=failure.message, avoid_nodes=failure.avoid_nodes, left_out=failure.left_out
        ),
    )
    plan.add(job.job_id, waiting)
    why = f"{failure.message}; its checkpoint of step {saved.step} is on its way to the store"
    plan.move(job.job_id, JobState.CHECKPOINTING, why)
    return True


def is_over(plan: Plan, job: Job) -> bool:
    """Whether a gang that waits has nothing to wait for: it is there, or a node is not."""
    gang = job.gang
    return gang is None or _on_its_way(job) is None or not _live(plan, gang)


def gives_up(job: Job, event: CheckpointAbandoned) -> bool:
    """Whether this says that what the gang waits for never gets there."""
    gang = job.gang
    if gang is None or gang.saved is None:
        return False
    return (event.attempt, event.step) == (gang.attempt, gang.saved.step)


def _on_its_way(job: Job) -> Saved | None:
    """The checkpoint of the live gang that the next attempt would begin from if it were there."""
    gang = job.gang
    if gang is None or gang.saved is None or gang.attempt < job.commits_from:
        return None
    if job.spec.checkpoint.resume == "never" and not job.restored:
        return None
    newest = job.checkpoints[-1] if job.checkpoints else None
    return gang.saved if newest is None or newest.step < gang.saved.step else None


def _gained(job: Job, gang: Gang, saved: Saved) -> timedelta:
    """How long the gang worked for it after the checkpoint before: so long it would work again."""
    before = gang.allocated_at
    if job.saved_at is not None:
        before = max(before, job.saved_at)
    return saved.at - before


def _live(plan: Plan, gang: Gang) -> bool:
    """Whether all its nodes are those that it ran on, and well: they bring it to the store."""
    nodes = ((plan.state.nodes.get(part.node_id), part) for part in gang.nodes)
    return all(
        node is not None and node.info.incarnation == part.incarnation and node.down is None
        for node, part in nodes
    )
