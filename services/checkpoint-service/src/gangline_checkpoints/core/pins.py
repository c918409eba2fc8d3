"""Decisions about pins: checkpoints that users want kept whatever the retention says."""

from __future__ import annotations

from gangline_checkpoints.core.deleting import delete_surplus
from gangline_checkpoints.core.state import CheckpointPlan
from gangline_schemas.events.checkpoints import CheckpointPinChanged
from gangline_schemas.events.quota import PinAdmitted


def change(plan: CheckpointPlan, request: PinAdmitted) -> None:
    """Pin the newest sound checkpoint of this step, or unpin all of it, unless it is so already.

    With an attempt, it is that one's checkpoint.

    A damaged or deleted checkpoint is not pinned: the gateway answered the user so.
    """
    job_id, job = request.job_id, plan.state.find(request.job_id)
    if job is None:
        return
    of_step = [
        item
        for item in job.kept
        if item.step == request.step and request.attempt in {None, item.attempt}
    ]
    wanted = [item for item in of_step if item.healthy][-1:] if request.pinned else of_step
    changing = [item.id for item in wanted if item.pinned != request.pinned]
    for step_id in changing:
        changed = CheckpointPinChanged(
            job_id=job_id,
            attempt=step_id.attempt,
            step=step_id.step,
            pinned=request.pinned,
            user=request.user,
        )
        plan.add(job_id, changed)
    if changing and not request.pinned:
        delete_surplus(plan, job_id)
