"""Decisions about pins: checkpoints that users want kept whatever the retention says."""

from __future__ import annotations

from gangline_checkpoints.core.deleting import delete_surplus
from gangline_checkpoints.core.state import CheckpointPlan
from gangline_schemas.events.checkpoints import CheckpointPinChanged
from gangline_schemas.events.quota import PinAdmitted


def change(plan: CheckpointPlan, asked: PinAdmitted) -> None:
    """Pin the newest sound checkpoint of this step, or unpin all of it, unless it is so already.

    A damaged or deleted checkpoint is not pinned: the gateway answered the user so.
    """
    job_id, job = asked.job_id, plan.state.find(asked.job_id)
    if job is None:
        return
    of_step = [item for item in job.kept if item.step == asked.step]
    wanted = [item for item in of_step if item.healthy][-1:] if asked.pinned else of_step
    changing = [item.id for item in wanted if item.pinned != asked.pinned]
    for step_id in changing:
        changed = CheckpointPinChanged(
            job_id=job_id,
            attempt=step_id.attempt,
            step=step_id.step,
            pinned=asked.pinned,
            user=asked.user,
        )
        plan.add(job_id, changed)
    if changing and not asked.pinned:
        delete_surplus(plan, job_id)
