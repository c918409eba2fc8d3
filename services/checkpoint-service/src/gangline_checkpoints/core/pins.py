"""Decisions about pins: checkpoints that are kept whatever the retention says.

Users pin them, and the registry's versions. A checkpoint is retained from the begin of its
registration. It is pinned if a version was made of it. If not, its pin stays as it was.
"""

from __future__ import annotations

from gangline_checkpoints.core.deleting import delete_surplus
from gangline_checkpoints.core.model import StepId
from gangline_checkpoints.core.state import CheckpointPlan, Stored
from gangline_schemas.events.checkpoints import CheckpointPinChanged, RegistrationNoted
from gangline_schemas.events.quota import PinAdmitted
from gangline_schemas.events.registry import VersionBegun, VersionRefused, VersionRegistered

REGISTRY = "registry"
"""The user of pins of versions."""


def change(plan: CheckpointPlan, request: PinAdmitted) -> None:
    """Pin the newest sound checkpoint of this step, or unpin all of it, unless it is so already.

    With an attempt, it is that one's checkpoint.

    A damaged or deleted checkpoint is not pinned: the gateway answered the user so.
    """
    job = plan.state.find(request.job_id)
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
        _change(plan, request.job_id, step_id, pinned=request.pinned, user=request.user)
    if changing and not request.pinned:
        delete_surplus(plan, request.job_id)


def follow(plan: CheckpointPlan, event: VersionBegun | VersionRegistered | VersionRefused) -> None:
    """Retain a checkpoint while the registry makes a version of it; pin it if it has."""
    if isinstance(event, VersionBegun):
        _registration_begun(plan, event)
    else:
        _registration_ended(plan, event)


def _registration_begun(plan: CheckpointPlan, event: VersionBegun) -> None:
    one = event.checkpoint
    if one is None or event.registration <= plan.state.registration:
        return
    job = plan.state.find(one.job_id)
    if job is not None and job.keeps(StepId(one.attempt, one.step)):
        place = (one.job_id, one.attempt, one.step)
        _note(plan, event.registration, place, open_=True)


def _registration_ended(plan: CheckpointPlan, event: VersionRegistered | VersionRefused) -> None:
    place = plan.state.registering.get(event.registration)
    if place is None:
        return
    job_id, step_id = place[0], StepId(*place[1:])
    job = plan.state.find(job_id)
    kept = [] if job is None else [item for item in job.kept if item.id == step_id]
    made = isinstance(event, VersionRegistered)
    if made and any(item.healthy and not item.pinned for item in kept):
        _change(plan, job_id, step_id, pinned=True, user=REGISTRY)
    _note(plan, event.registration, place, open_=False)
    if kept and not made:
        delete_surplus(plan, job_id)


def _change(plan: CheckpointPlan, job_id: str, step_id: StepId, *, pinned: bool, user: str) -> None:
    changed = CheckpointPinChanged(
        job_id=job_id, attempt=step_id.attempt, step=step_id.step, pinned=pinned, user=user
    )
    plan.add(job_id, changed)


def _note(plan: CheckpointPlan, number: int, place: Stored, *, open_: bool) -> None:
    job_id, attempt, step = place
    noted = RegistrationNoted(
        registration=number, job_id=job_id, attempt=attempt, step=step, open=open_
    )
    plan.add(job_id, noted)
