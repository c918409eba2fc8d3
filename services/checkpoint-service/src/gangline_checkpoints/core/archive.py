"""The archive: one short line of JSON for each ended job that still has checkpoints.

Some 70 bytes in place of the 3 KB of a job that may still change. A job is read back when an event
is about it (a pin, damage, a late part), and written again when no work on it is left.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from gangline_checkpoints.core.model import Job, Kept, StepId
from gangline_schemas.checkpoint_policy import Retention

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
"""When jobs ended that are read back: no part of them is waited for."""
_DAMAGED, _PROMOTED, _PINNED = 1, 2, 4
_KEEP = Retention()


def written(job_id: str, job: Job, verified_at: datetime) -> bytes:
    """The line of an ended job whose healthy checkpoints were all verified at this time."""
    metric = None if job.keep.best is None else job.keep.best.metric
    line = [
        job.prefix.removesuffix(f"/{job_id}"),
        int(verified_at.timestamp()),
        job.attempt,
        job.known,
        [_item(item, metric) for item in job.kept],
        None if job.keep == _KEEP else job.keep.data(),
    ]
    while line[-1] is None:
        line.pop()
    return json.dumps(line, separators=(",", ":")).encode()


def read(job_id: str, line: bytes) -> tuple[Job, datetime]:
    """The job of a line, and when its healthy checkpoints were verified."""
    head, verified_s, attempt, known, items, *keep = json.loads(line)
    kept = [_kept(item) for item in items]
    job = Job(
        attempt=attempt,
        world_size=kept[-1].world_size,
        prefix=f"{head}/{job_id}",
        keep=Retention.model_validate(keep[0]) if keep else _KEEP,
        known=None if known is None else StepId(*known),
        final=True,
        ended_at=LONG_AGO,
        kept=kept,
    )
    return job, LONG_AGO + timedelta(seconds=verified_s)


def _item(item: Kept, metric: str | None) -> list[Any]:
    """A checkpoint, of its metrics the one that retention looks at; without what is as usual."""
    flags = (not item.healthy) * _DAMAGED + item.promoted * _PROMOTED + item.pinned * _PINNED
    measured = {name: value for name, value in item.metrics.items() if name == metric}
    found: list[Any] = [*item.id, item.world_size, flags, item.refers, measured]
    while not found[-1]:
        found.pop()
    return found


def _kept(item: list[Any]) -> Kept:
    usual: list[Any] = [0, (), {}]
    attempt, step, world_size, flags, refers, metrics = item + usual[len(item) - 3 :]
    return Kept(
        StepId(attempt, step),
        world_size,
        metrics,
        healthy=not flags & _DAMAGED,
        promoted=bool(flags & _PROMOTED),
        pinned=bool(flags & _PINNED),
        refers=tuple(refers),
    )
