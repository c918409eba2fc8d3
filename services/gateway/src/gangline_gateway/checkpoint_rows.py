"""The rows of a job's checkpoints, in the order in which they were saved.

The state of the checkpoint service has no costs, no times and no reasons, and forgets what is gone.
So the gateway folds these rows itself.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gangline_schemas.api.checkpoints import Checkpoint
from gangline_schemas.events.checkpoints import (
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointDeleted,
    CheckpointPinChanged,
    CheckpointPromoted,
    CheckpointSaved,
    CheckpointScrubbed,
    EffectDeferred,
    PromotionRefused,
    PromotionRequested,
)
from gangline_schemas.events.scheduling import CheckpointRef

ROWS_KEPT = 1000
ENDED_ROWS_KEPT = 100
"""For a job that has ended. History has all rows, and the model has thousands of such jobs."""
NODES, STORE = "nodes", "store"
"""Tiers: where a checkpoint lies."""
ON_NODES = 2
"""Agents keep this many of a job's newest checkpoints on their disks."""

Rows = tuple[Checkpoint, ...]
OnItsWay = CheckpointSaved | CheckpointCommitted | CheckpointAbandoned | EffectDeferred
Promotion = PromotionRequested | CheckpointPromoted | PromotionRefused
Change = (
    CheckpointCorrupted | CheckpointDeleted | CheckpointScrubbed | CheckpointPinChanged | Promotion
)
CheckpointEvent = OnItsWay | Change


def after(rows: Rows, event: CheckpointEvent, at: datetime) -> Rows:
    """The rows after an event of the job."""
    match event:
        case CheckpointSaved():
            return _saved(rows, event, at)
        case CheckpointCommitted():
            return _committed(rows, event, at)
        case CheckpointAbandoned():
            given_up = (event.attempt, event.step)
            return tuple(row for row in rows if row.status != "saved" or row.place != given_up)
        case EffectDeferred():
            return _deferred(rows, event)
    place = (event.attempt, event.step)
    return tuple(_changed(row, event, at) if row.place == place else row for row in rows)


def of_gang(rows: Rows, attempt: int, start: CheckpointRef | None) -> Rows:
    """The rows after a new gang was allocated.

    Of older attempts, its nodes have only the checkpoint that it starts from.
    """
    first = None if start is None else (start.attempt, start.step)
    stored = (row for row in rows if row.attempt >= attempt or row.status != "saved")
    return tuple(
        row if row.attempt >= attempt else _on_nodes(row, there=row.place == first)
        for row in stored
    )


def of_ended(rows: Rows) -> Rows:
    """The rows of a job that has ended: all committed ones and the newest of the others.

    Its nodes keep no checkpoints.
    """
    stored = [_on_nodes(row, there=False) for row in rows if row.status != "saved"]
    lost = [row.place for row in stored if row.status != "committed"]
    room = max(0, ENDED_ROWS_KEPT - (len(stored) - len(lost)))
    dropped = frozenset(lost[: max(0, len(lost) - room)])
    return tuple(row for row in stored if row.status == "committed" or row.place not in dropped)


def _changed(row: Checkpoint, event: Change, at: datetime) -> Checkpoint:
    match event:
        case CheckpointCorrupted():
            return _gone(row, "corrupted", f"{event.key}: {event.reason}")
        case CheckpointDeleted():  # the status of a corrupted one stays
            return row if row.status == "corrupted" else _gone(row, "deleted", event.reason)
        case CheckpointScrubbed():
            return replace(row, scrubbed_at=at)
        case CheckpointPinChanged():
            return replace(row, pinned=event.pinned)
    words = {PromotionRequested: "asked", CheckpointPromoted: "promoted"}
    return replace(
        row,
        promotion=words.get(type(event), "refused"),
        promotion_run=event.run,
        promotion_reason=event.reason if isinstance(event, PromotionRefused) else "",
    )


def _gone(row: Checkpoint, status: str, reason: str) -> Checkpoint:
    """The row of a checkpoint that is deleted from the store or damaged there."""
    tiers = tuple(tier for tier in row.tiers if tier != STORE)
    return replace(row, status=status, reason=reason, tiers=tiers)


def _on_nodes(row: Checkpoint, *, there: bool) -> Checkpoint:
    if (NODES in row.tiers) == there:
        return row
    stored = tuple(tier for tier in row.tiers if tier != NODES)
    return replace(row, tiers=(NODES, *stored) if there else stored)


def _saved(rows: Rows, event: CheckpointSaved, at: datetime) -> Rows:
    if any(row.place == (event.attempt, event.step) for row in rows):
        return rows
    row = Checkpoint(
        attempt=event.attempt,
        step=event.step,
        status="saved",
        committed_at=at,
        tiers=(NODES,),
        world_size=event.world_size,
        size_bytes=0,
        write_s=0.0,
        blocked_s=0.0,
    )
    found = [*rows, row][-ROWS_KEPT:]
    there = [index for index, old in enumerate(found) if NODES in old.tiers]
    for index in there[:-ON_NODES]:
        found[index] = _on_nodes(found[index], there=False)
    return tuple(found)


def _committed(rows: Rows, event: CheckpointCommitted, at: datetime) -> Rows:
    ref = event.checkpoint
    place = (ref.attempt, ref.step)
    on_nodes = any(NODES in old.tiers for old in rows if old.place == place)
    row = Checkpoint(
        attempt=ref.attempt,
        step=ref.step,
        status="committed",
        committed_at=at,
        tiers=(NODES, STORE) if on_nodes else (STORE,),
        world_size=ref.world_size,
        size_bytes=event.size_bytes,
        write_s=event.write_s,
        blocked_s=event.blocked_s,
        whole_bytes=event.whole_bytes,
        refers=event.refers,
        verify_s=event.verify_s,
        metrics=event.metrics,
    )
    return (*(old for old in rows if old.place != place), row)[-ROWS_KEPT:]


def _deferred(rows: Rows, event: EffectDeferred) -> Rows:
    """Sets the reason of a save that waits to be verified; the status stays."""
    place = (event.attempt, event.step) if event.effect == "verify" else None
    return tuple(
        replace(row, reason=event.reason) if row.status == "saved" and row.place == place else row
        for row in rows
    )
