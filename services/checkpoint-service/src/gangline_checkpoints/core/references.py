"""Which checkpoints need which: chunks of an incremental one lie in objects of earlier ones.

A chunk is named where it was first written, so a load reads no other checkpoints. A checkpoint that
is retained for another one's sake is retained whole, with all that it needs itself. Pure, over
`kept`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gangline_checkpoints.core.model import Job, Kept, StepId
from gangline_schemas.events.checkpoints import CheckpointCorrupted

REFERABLE = 3
"""So many of the newest healthy ones of an attempt may be what its ranks refer to next."""


def needed(kept: Iterable[Kept]) -> set[StepId]:
    """The checkpoints in whose objects chunks of these lie."""
    return {StepId(item.attempt, step) for item in kept for step in item.refers}


def removable(job: Job, surplus: Sequence[StepId], *, over: bool) -> list[StepId]:
    """Those of `surplus` that may be deleted: no remaining checkpoint of the job needs them.

    A save on its way may refer to one of the newest, so those stay too: if one is deleted before
    the save is committed, the save is lost. None is on its way when the job is `over` and no part
    of an open checkpoint is known.
    """
    kept = job.kept
    referable: set[StepId] = set()
    if job.full_every > 1 and (job.open or not (over or job.final)):
        own = [item.id for item in kept if item.healthy and item.attempt == job.attempt]
        referable.update(own[-REFERABLE:])
    going = set(surplus) - referable
    while stays := going & needed(item for item in kept if item.id not in going):
        going -= stays
    return [step_id for step_id in surplus if step_id in going]


def commit_problem(job: Job, step_id: StepId, refers: Iterable[int]) -> str | None:
    """Why a verified checkpoint cannot count: one that it refers to does not, or not any more."""
    sound = {item.id for item in job.kept if item.healthy}
    for step in refers:
        if StepId(step_id.attempt, step) not in sound:
            return f"it refers to step {step}, which is not kept and sound"
    return None


def corrupted(job: Job, event: CheckpointCorrupted) -> list[CheckpointCorrupted]:
    """The event for this checkpoint, and for each healthy one with chunks in its objects.

    It does not matter which object is damaged: without its manifest no later save can be verified.
    """
    reason = f"chunks of it lie in step {event.step}: {event.reason}"
    others = [
        event.model_copy(update={"step": item.step, "reason": reason})
        for item in job.kept
        if item.healthy and item.attempt == event.attempt and event.step in item.refers
    ]
    return [event, *others]


def violations(job: Job) -> list[str]:
    """Sentences about references that do not hold; [] when all is well."""
    kept = {item.id: item for item in job.kept}
    found = []
    for item in job.kept:
        for step_id in sorted(needed([item])):
            base = kept.get(step_id)
            if base is None:
                found.append(f"{item.id} refers to {step_id}, which is not kept")
            elif step_id >= item.id:
                found.append(f"{item.id} refers to {step_id}, which is not older")
    return found
