"""Decisions to delete: checkpoints that the retention gives up and no job needs."""

from __future__ import annotations

from gangline_bus.decision import Decision
from gangline_checkpoints.core import references
from gangline_checkpoints.core.model import Job, Kept, StepId
from gangline_checkpoints.core.policy.retention import surplus
from gangline_checkpoints.core.state import CheckpointState
from gangline_schemas.events.checkpoints import CheckpointDeleted
from gangline_schemas.events.scheduling import CheckpointRef

_REPLACED = "newer checkpoints replace it"
_CORRUPTED = "it is corrupted, and a newer one is healthy"


def deletions(
    state: CheckpointState,
    job_id: str,
    kept: list[Kept],
    *,
    except_job: str,
    held_now: CheckpointRef | None = None,
    known: StepId | None = None,
    over: bool = False,
) -> list[Decision]:
    """Delete those of `kept` that retention gives up, when job `except_job` needs `held_now` alone.

    `known` is the scheduler's present checkpoint, None: the same as before. `over`: the job ends.
    """
    job = state.find(job_id) or Job()
    held = state.held(except_job=except_job).get(job_id, set())
    if held_now is not None and held_now.job_id == job_id:
        held.add(StepId(held_now.attempt, held_now.step))
    damaged = {item.id for item in kept if not item.healthy}
    return [
        Decision(
            job_id,
            CheckpointDeleted(
                job_id=job_id,
                attempt=step_id.attempt,
                step=step_id.step,
                reason=_CORRUPTED if step_id in damaged else _REPLACED,
            ),
        )
        for step_id in references.removable(
            job, kept, surplus(kept, job.keep, held, known=known or job.known), over=over
        )
    ]


def no_longer_held(
    state: CheckpointState,
    job_id: str,
    resume: CheckpointRef | None,
    *,
    held_now: CheckpointRef | None = None,
) -> list[Decision]:
    """Delete what another job retained only because this one had started from it.

    This one needs `held_now`, None: nothing.
    """
    if resume is None or resume.job_id == job_id:
        return []
    owner = state.find(resume.job_id) or Job()
    return deletions(state, resume.job_id, owner.kept, except_job=job_id, held_now=held_now)
