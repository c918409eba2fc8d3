"""Decisions to delete: checkpoints that the retention gives up and no job needs."""

from __future__ import annotations

from gangline_checkpoints.core import references
from gangline_checkpoints.core.model import Job
from gangline_checkpoints.core.policy.retention import surplus
from gangline_checkpoints.core.state import CheckpointPlan
from gangline_schemas.events.checkpoints import CheckpointDeleted
from gangline_schemas.events.scheduling import CheckpointRef

_REPLACED = "newer checkpoints replace it"
_CORRUPTED = "it is corrupted, and a newer one is healthy"


def delete_surplus(plan: CheckpointPlan, job_id: str, *, over: bool = False) -> None:
    """Delete those of a job's checkpoints that retention gives up. `over`: the job ends."""
    state = plan.state
    job = state.find(job_id) or Job()
    in_use = state.in_use().get(job_id, set())
    damaged = {item.id for item in job.kept if not item.healthy}
    for step_id in references.removable(
        job, surplus(job.kept, job.keep, in_use, known=job.known), over=over
    ):
        deleted = CheckpointDeleted(
            job_id=job_id,
            attempt=step_id.attempt,
            step=step_id.step,
            reason=_CORRUPTED if step_id in damaged else _REPLACED,
        )
        plan.add(job_id, deleted)


def delete_unused(plan: CheckpointPlan, job_id: str, resume: CheckpointRef | None) -> None:
    """Delete what another job retained only because this one had started from it."""
    if resume is not None and resume.job_id != job_id:
        delete_surplus(plan, resume.job_id)
