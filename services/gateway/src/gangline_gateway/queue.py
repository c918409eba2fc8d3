"""The queue: the scheduler's order of pending jobs, for a caller's teams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice

from gangline_gateway.scheduling import Shard
from gangline_scheduler.core.listing import listed
from gangline_scheduler.core.model import Job
from gangline_schemas.api.cluster import Queue, QueueEntry
from gangline_schemas.api.jobs import Waiting


def queue(
    shards: Sequence[Shard],
    now: datetime,
    visible: frozenset[str] | None,
    *,
    limit: int | None = None,
    after: int = 0,
) -> Queue:
    """Pending jobs in the scheduler's order, one shard after the other.

    Only jobs of the visible teams (None: all), at most `limit` (None: all) after place `after`.
    """
    shown = (
        _entry(place, job, score, now)
        for place, (job, score) in enumerate(_listed(shards, now), 1)
        if place > after and (visible is None or job.team in visible)
    )
    page = list(islice(shown, None if limit is None else limit + 1))
    entries = page[:limit]
    pending = [shard.state.jobs[job_id] for shard in shards for job_id in shard.state.pending]
    return Queue(
        queue=entries,
        cursor=entries[-1].position if limit is not None and len(page) > limit else None,
        pending_jobs=len(pending),
        pending_gpus=sum(job.gpus for job in pending),
    )


def _listed(shards: Sequence[Shard], now: datetime) -> Iterator[tuple[Job, float]]:
    for shard in shards:
        yield from listed(shard.state, now, shard.policy)


def _entry(place: int, job: Job, score: float, now: datetime) -> QueueEntry:
    waiting = job.waiting
    return QueueEntry(
        position=place,
        job_id=job.job_id,
        name=job.spec.name,
        team=job.team,
        user=job.user,
        priority=job.priority,
        gpus=job.gpus,
        score=round(score, 3),
        waiting_since=job.waiting_since,
        waited_s=max(0.0, (now - job.waiting_since).total_seconds()),
        waiting=None
        if waiting is None
        else Waiting.model_validate(
            {"code": waiting.code, "message": waiting.message, "since": waiting.at}
        ),
    )
