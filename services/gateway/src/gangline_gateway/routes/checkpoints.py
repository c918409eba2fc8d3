"""/v1/training-jobs/.../checkpoints/...: pin a checkpoint, promote a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import Path, Response
from starlette.concurrency import run_in_threadpool

from gangline_gateway.app_context import (
    App,
    AppContext,
    Caller,
    JobId,
    answers,
    job_to_change,
    router,
)
from gangline_gateway.live_view import LiveView
from gangline_gateway.problems import conflict, not_found
from gangline_gateway.routes.jobs import IdempotencyKey, saved_in_history
from gangline_gateway.submit import submit
from gangline_schemas.api.checkpoints import Checkpoint, PinBody
from gangline_schemas.api.jobs import Job
from gangline_schemas.events.requests import CheckpointPinRequested
from gangline_schemas.validation import validation_of
from gangline_service.tokens import Principal

checkpoints = router("Jobs")

Step = Annotated[int, Path(ge=0, le=2**53, description="The step of a committed checkpoint.")]


@checkpoints.post(
    "/v1/training-jobs/{job_id}/checkpoints/{step}/pin",
    operation_id="pinCheckpoint",
    summary="Pin or unpin a checkpoint",
    response_model=Checkpoint,
    responses=answers(404, 409),
)
async def pin(job_id: JobId, step: Step, body: PinBody, app: App, caller: Caller) -> Checkpoint:
    """Retention never deletes a pinned checkpoint; once unpinned, `checkpoint.keep` decides."""
    pinned = body.pinned
    if app.details(job_id, caller) is None:  # it ended so long ago that only history has it
        return await _pin_by_history(app, caller, job_id, step, pinned=pinned)
    rows = job_to_change(app, caller, job_id).checkpoints
    row = _standing(rows, step, pinned_first=not pinned)
    if row.pinned == pinned:
        return row
    event = CheckpointPinRequested(job_id=job_id, step=step, pinned=pinned, user=caller.name)
    request_id = await app.publisher.publish(job_id, event)

    def decided(live: LiveView) -> Checkpoint | str | None:
        outcome, details = live.outcomes.get(request_id), live.details(job_id)
        if outcome is not None and outcome.refused is not None:
            return outcome.refused
        rows = details.checkpoints if details is not None else ()
        changed = [
            item
            for item in rows
            if (item.attempt, item.step) == (row.attempt, row.step) and item.pinned == pinned
        ]
        return changed[0] if changed else None

    answer: Checkpoint | str | None = await app.tail.until(decided, app.answer_wait_s)
    if isinstance(answer, str):
        raise conflict("refused", answer)
    return answer or row


async def _pin_by_history(
    app: AppContext, caller: Principal, job_id: str, step: int, *, pinned: bool
) -> Checkpoint:
    """Whether it was pinned is not known here, so the request is always sent."""
    _, rows = await run_in_threadpool(saved_in_history, app, caller, job_id)
    row = _standing(rows, step)
    event = CheckpointPinRequested(job_id=job_id, step=step, pinned=pinned, user=caller.name)
    request_id = await app.publisher.publish(job_id, event)
    outcome = await app.tail.until(lambda live: live.outcomes.get(request_id), app.answer_wait_s)
    if outcome is not None and outcome.refused is not None:
        raise conflict("refused", outcome.refused)
    return replace(row, pinned=pinned)


@checkpoints.post(
    "/v1/training-jobs/{job_id}/checkpoints/{step}/promote",
    operation_id="promoteCheckpoint",
    summary="Validate and promote a checkpoint",
    status_code=201,
    response_model=Job,
    responses={
        200: {"model": Job, "description": "The same key was used before."},
        **answers(404, 409),
    },
)
async def promote(
    job_id: JobId,
    step: Step,
    response: Response,
    app: App,
    caller: Caller,
    key: IdempotencyKey = None,
) -> Job:
    """Submits a run that loads it in fresh processes; if the run succeeds, it is promoted.

    409 if the job's `checkpoint.promote` is off: no loss was recorded to compare with.
    """
    if app.details(job_id, caller) is None:  # it ended so long ago that only history has it
        spec, rows = await run_in_threadpool(saved_in_history, app, caller, job_id)
    else:
        found = job_to_change(app, caller, job_id)
        spec, rows = found.job.spec, list(found.checkpoints)
    _standing(rows, step)
    if spec is None or spec.checkpoint.promote == "off":
        raise conflict(
            "not-recorded",
            "the job's checkpoint.promote is off, so no loss was recorded with its checkpoints; "
            "set `checkpoint: {promote: final}` in the next job",
        )
    done = await submit(app, caller, validation_of(spec, job_id, step), key)
    response.status_code = 201 if done.created else 200
    response.headers["Location"] = f"/v1/training-jobs/{done.job_id}"
    return done.answer(app)


def _standing(rows: Sequence[Checkpoint], step: int, *, pinned_first: bool = False) -> Checkpoint:
    """The committed checkpoint of this step: the newest attempt's, or the newest pinned one."""
    standing = [row for row in rows if (row.step, row.status) == (step, "committed")]
    if not standing:
        raise not_found("committed checkpoint of this job")
    return max(standing, key=lambda row: (pinned_first and row.pinned, row.attempt))
