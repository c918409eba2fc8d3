"""Decisions about promotion: what is to be validated, and what its run found.

A validation is a run like any other: admitted by quota, placed by the scheduler, started by the
agents. It ends well exactly if what it loaded is finite and has the loss that was recorded.
"""

from __future__ import annotations

import hashlib

from gangline_checkpoints.core.deleting import delete_surplus
from gangline_checkpoints.core.model import Job, StepId
from gangline_checkpoints.core.state import CheckpointPlan
from gangline_schemas.checkpoint import commit_key
from gangline_schemas.events.checkpoints import (
    CheckpointPromoted,
    PromotionRefused,
    PromotionRequested,
)
from gangline_schemas.events.quota import JobRejected
from gangline_schemas.events.scheduling import JobStateChanged
from gangline_schemas.job import JobState
from gangline_schemas.validation import validation_of


def request(
    plan: CheckpointPlan, job_id: str, job: Job, known: StepId, *, last: bool = False
) -> None:
    """A run for `known`, which the scheduler knows, if the job wants it validated.

    Earlier the scheduler could not start from it. `last`: the job has ended well, and saves no
    more.
    """
    if job.spec is None or (job.requested is not None and known <= job.requested):
        return
    every = job.spec.checkpoint.promote
    if not (last or (isinstance(every, int) and job.commits_since_request >= every)):
        return
    event = PromotionRequested(
        job_id=job_id,
        attempt=known.attempt,
        step=known.step,
        run=_run(job_id, known),
        spec=validation_of(job.spec, job_id, known.step),
    )
    plan.add(job_id, event)


def judge(plan: CheckpointPlan, run_id: str, end: JobStateChanged | JobRejected) -> None:
    """Decide upon a checkpoint when its validating run ends; nothing for all other runs."""
    state = plan.state
    run = state.jobs.get(run_id)
    place = state.validating.get(run_id)
    if run is not None and run.validates is not None:
        place = (run.validates.job_id, run.validates.attempt, run.validates.step)
    if place is None:
        return
    known = state.find(place[0])
    owner = known or Job()  # nothing may be left of a job that ended
    job_id, step_id = place[0], StepId(*place[1:])
    refusal = _refusal(owner, run, step_id, end)
    at = {"job_id": job_id, "attempt": step_id.attempt, "step": step_id.step, "run": run_id}
    event = (
        CheckpointPromoted.model_validate({**at, **_stored(owner, step_id)})
        if refusal is None
        else PromotionRefused.model_validate({**at, "reason": refusal})
    )
    plan.add(job_id, event)
    if known is not None:
        delete_surplus(plan, job_id)


def _stored(owner: Job, step_id: StepId) -> dict[str, object]:
    """The facts of a checkpoint that a job needs to start from it."""
    (saved,) = (kept for kept in owner.kept if kept.id == step_id)
    key = commit_key(owner.prefix, step_id.attempt, step_id.step)
    return {"world_size": saved.world_size, "commit_key": key}


def _refusal(
    owner: Job, run: Job | None, step_id: StepId, end: JobStateChanged | JobRejected
) -> str | None:
    if isinstance(end, JobRejected):
        return f"its run was rejected: {end.reason}"
    if end.state is not JobState.SUCCEEDED:
        return end.reason or f"its run was {end.state.value}"
    if run is None or run.validates is None:
        return "its run began elsewhere"
    if run.kept or run.open:
        return "its run saved checkpoints of its own: it trained, and validated nothing"
    if not any(kept.id == step_id and kept.healthy for kept in owner.kept):
        return "it was found damaged meanwhile"
    return None


def _run(job_id: str, step_id: StepId) -> str:
    """The same id whenever it is asked for: a submission that comes twice is one."""
    text = f"{job_id}/{step_id.attempt}/{step_id.step}"
    return f"validate-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
