"""Decisions that end the collecting of a checkpoint's parts: all are there, or it is given up."""

from __future__ import annotations

from collections.abc import Collection

from gangline_checkpoints.core.model import StepId
from gangline_checkpoints.core.state import CheckpointPlan
from gangline_schemas.events.checkpoints import CheckpointAbandoned, CheckpointWritten


def write(plan: CheckpointPlan, job_id: str, step_id: StepId, world_size: int) -> None:
    """All parts are in the store: they are verified next."""
    event = CheckpointWritten(
        job_id=job_id, attempt=step_id.attempt, step=step_id.step, world_size=world_size
    )
    plan.add(job_id, event)


def abandon(
    plan: CheckpointPlan,
    job_id: str,
    step_id: StepId,
    reason: str,
    *,
    also: Collection[int] = (),
) -> None:
    """The checkpoint will never be committed. `also` are further ranks that reported."""
    event = CheckpointAbandoned(
        job_id=job_id,
        attempt=step_id.attempt,
        step=step_id.step,
        reason=reason,
        ranks=plan.soft.of(job_id, step_id).runs(also),
    )
    plan.add(job_id, event)
