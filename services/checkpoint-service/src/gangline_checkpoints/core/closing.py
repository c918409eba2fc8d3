"""Decisions that end the collecting of a checkpoint's parts: all are there, or it is given up."""

from __future__ import annotations

from collections.abc import Collection

from gangline_bus.decision import Decision
from gangline_checkpoints.core.model import StepId
from gangline_checkpoints.core.reports import Reports
from gangline_schemas.events.checkpoints import CheckpointAbandoned, CheckpointWritten


def written(job_id: str, step_id: StepId, world_size: int) -> Decision:
    """All parts are in the store: they are verified next."""
    event = CheckpointWritten(
        job_id=job_id, attempt=step_id.attempt, step=step_id.step, world_size=world_size
    )
    return Decision(job_id, event)


def abandoned(
    reports: Reports,
    job_id: str,
    step_id: StepId,
    reason: str,
    *,
    also: Collection[int] = (),
) -> Decision:
    """The checkpoint will never be committed. `also` are further ranks that reported."""
    event = CheckpointAbandoned(
        job_id=job_id,
        attempt=step_id.attempt,
        step=step_id.step,
        reason=reason,
        ranks=reports.of(job_id, step_id).runs(also),
    )
    return Decision(job_id, event)
