"""What must hold of the checkpoint service's whole log (invariants 3 and 4)."""

from __future__ import annotations

from collections.abc import Iterable

from gangline_checkpoints.core.model import StepId
from gangline_schemas.base import Event
from gangline_schemas.events.checkpoints import (
    AttemptEnded,
    AttemptNoted,
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointDeleted,
    CheckpointPinChanged,
    CheckpointPromoted,
    RestoreNoted,
    ResumeNoted,
)
from gangline_schemas.events.scheduling import CheckpointRef


def log_violations(events: Iterable[Event]) -> list[str]:
    """The violations in a whole log.

    Invariant 3: an older attempt commits nothing. Invariant 4: these are never deleted:

    - the newest committed one;
    - one that a job starts from, until the job has its own or ends;
    - a healthy one that the scheduler may still start from;
    - a pinned one, and the newest promoted one.
    """
    log = list(events)
    return [
        *_commit_violations(log),
        *_start_violations(log),
        *_known_violations(log),
        *_wanted_violations(log),
    ]


def _commit_violations(log: list[Event]) -> list[str]:
    attempts: dict[str, int] = {}
    newest: dict[str, StepId] = {}
    found = []
    for event in log:
        if isinstance(event, AttemptNoted):
            if event.attempt <= attempts.get(event.job_id, 0):
                found.append(f"{event.job_id}: attempt {event.attempt} was noted again or late")
            attempts[event.job_id] = event.attempt
        elif isinstance(event, CheckpointCommitted):
            step_id = StepId(event.checkpoint.attempt, event.checkpoint.step)
            if step_id.attempt != attempts.get(event.job_id):
                found.append(f"{event.job_id}: {step_id} was committed by an attempt that is over")
            if step_id <= newest.get(event.job_id, StepId(0, -1)):
                found.append(f"{event.job_id}: {step_id} was committed after a newer one")
            newest[event.job_id] = step_id
        elif isinstance(event, CheckpointDeleted) and newest.get(event.job_id) == (
            event.attempt,
            event.step,
        ):
            found.append(f"{event.job_id}: the newest checkpoint was deleted")
    return found


def _start_violations(log: list[Event]) -> list[str]:
    starts: dict[str, CheckpointRef | None] = {}
    restored: dict[str, CheckpointRef | None] = {}
    found = []
    for event in log:
        match event:
            case AttemptNoted(job_id=job_id):
                starts[job_id], restored[job_id] = event.resume, None
            case RestoreNoted(job_id=job_id):
                restored[job_id] = event.checkpoint
            case AttemptEnded(job_id=job_id, final=True):
                starts[job_id] = restored[job_id] = None
            case CheckpointCommitted(job_id=job_id):
                starts[job_id] = None
            case CheckpointDeleted():
                place = (event.job_id, event.attempt, event.step)
                found += [
                    f"{place} was deleted, from which {job_id} starts"
                    for job_id, point in (*starts.items(), *restored.items())
                    if point is not None and (point.job_id, point.attempt, point.step) == place
                ]
    return found


def _wanted_violations(log: list[Event]) -> list[str]:
    pinned: set[tuple[str, int, int]] = set()
    promoted: dict[str, tuple[str, int, int]] = {}
    found = []
    for event in log:
        match event:
            case CheckpointPinChanged(pinned=True):
                pinned.add((event.job_id, event.attempt, event.step))
            case CheckpointPromoted():
                place = (event.job_id, event.attempt, event.step)
                promoted[event.job_id] = max(place, promoted.get(event.job_id, place))
            case CheckpointPinChanged() | CheckpointCorrupted():
                place = (event.job_id, event.attempt, event.step)
                pinned.discard(place)
                if promoted.get(event.job_id) == place and isinstance(event, CheckpointCorrupted):
                    del promoted[event.job_id]
            case CheckpointDeleted():
                place = (event.job_id, event.attempt, event.step)
                if place in pinned:
                    found.append(f"{place} was deleted, and it was pinned")
                if promoted.get(event.job_id) == place:
                    found.append(f"{place} was deleted, and it was the newest promoted one")
    return found


def _known_violations(log: list[Event]) -> list[str]:
    known: dict[str, StepId] = {}
    damaged: set[tuple[str, int, int]] = set()
    found = []
    for event in log:
        match event:
            case (
                ResumeNoted(job_id=job_id, checkpoint=point)
                | RestoreNoted(job_id=job_id, checkpoint=point)
            ):
                known[job_id] = StepId(point.attempt, point.step)
            case CheckpointCorrupted():
                damaged.add((event.job_id, event.attempt, event.step))
            case CheckpointDeleted():
                place = (event.job_id, event.attempt, event.step)
                named = known.get(event.job_id)
                if named is not None and place not in damaged and place[1:] >= named:
                    found.append(f"{place} was deleted, and the scheduler knows only {named}")
    return found
