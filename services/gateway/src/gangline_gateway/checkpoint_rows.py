"""A job's checkpoints as the live view knows them: rows in the order in which they were saved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from gangline_gateway.live_model import Checkpoint
from gangline_schemas.events.checkpoints import (
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointSaved,
    EffectDeferred,
)
from gangline_schemas.events.scheduling import CheckpointRef

ROWS_KEPT = 1000
ENDED_ROWS_KEPT = 100
"""Of a job that has ended: history has all, and thousands of such jobs are in the view."""
ON_NODES = 2
"""So many of a job's newest checkpoints its agents keep on their disks."""

Rows = tuple[Checkpoint, ...]
OnItsWay = CheckpointSaved | CheckpointCommitted | CheckpointAbandoned | EffectDeferred


def after(rows: Rows, event: OnItsWay, at: datetime) -> Rows:
    """The rows after an event of the job."""
    match event:
        case CheckpointSaved():
            return _saved(rows, event, at)
        case CheckpointCommitted():
            return _committed(rows, event, at)
        case CheckpointAbandoned():
            gone = (event.attempt, event.step)
            return tuple(row for row in rows if row.status != "saved" or _place(row) != gone)
        case EffectDeferred():
            return _deferred(rows, event)


def of_gang(rows: Rows, attempt: int, start: CheckpointRef | None) -> Rows:
    """The rows with this attempt's gang: of older ones its nodes have what it starts from alone."""
    there = None if start is None else (start.attempt, start.step)
    stored = (row for row in rows if row.attempt >= attempt or row.status != "saved")
    return tuple(
        row if row.attempt >= attempt else replace(row, on_nodes=_place(row) == there)
        for row in stored
    )


def of_ended(rows: Rows) -> Rows:
    """The rows of a job that is over: those that stand, and the newest of the others.

    Its nodes keep nothing.
    """
    stored = [replace(row, on_nodes=False) for row in rows if row.status != "saved"]
    gone = [_place(row) for row in stored if row.status != "committed"]
    room = max(0, ENDED_ROWS_KEPT - (len(stored) - len(gone)))
    dropped = frozenset(gone[: max(0, len(gone) - room)])
    return tuple(row for row in stored if row.status == "committed" or _place(row) not in dropped)


def _saved(rows: Rows, event: CheckpointSaved, at: datetime) -> Rows:
    if any(_place(row) == (event.attempt, event.step) for row in rows):
        return rows
    size = event.world_size
    row = Checkpoint(event.attempt, event.step, "saved", at, size, 0, 0.0, 0.0, on_nodes=True)
    found = [*rows, row][-ROWS_KEPT:]
    there = [index for index, old in enumerate(found) if old.on_nodes]
    for index in there[:-ON_NODES]:
        found[index] = replace(found[index], on_nodes=False)
    return tuple(found)


def _committed(rows: Rows, event: CheckpointCommitted, at: datetime) -> Rows:
    ref = event.checkpoint
    place = (ref.attempt, ref.step)
    row = Checkpoint(
        ref.attempt, ref.step, "committed", at, ref.world_size, event.size_bytes, event.write_s,
        event.blocked_s, whole_bytes=event.whole_bytes, refers=event.refers,
        verify_s=event.verify_s, metrics=event.metrics,
        on_nodes=any(old.on_nodes for old in rows if _place(old) == place),
    )  # fmt: skip
    return (*_without(rows, place), row)[-ROWS_KEPT:]


def _deferred(rows: Rows, event: EffectDeferred) -> Rows:
    """A save that waits to be verified says what for; what is stored does not change by a wait."""
    place = (event.attempt, event.step) if event.effect == "verify" else None
    return tuple(
        replace(row, reason=event.reason) if row.status == "saved" and _place(row) == place else row
        for row in rows
    )


def _without(rows: Iterable[Checkpoint], place: tuple[int, int]) -> Iterable[Checkpoint]:
    return (row for row in rows if _place(row) != place)


def _place(row: Checkpoint) -> tuple[int, int]:
    return row.attempt, row.step
