"""The queue: the scheduler's order of pending jobs, for a caller's teams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import TypeVar

from gangline_gateway import present
from gangline_gateway.scheduling import Shard
from gangline_scheduler.core.listing import Place, listed, order_parts
from gangline_schemas.api.cluster import Queue, QueueEntry
from gangline_schemas.api.jobs import Waiting
from gangline_schemas.api.questions import ExpectedStart, QueueOutlook, Reserved

NamedT = TypeVar("NamedT", ExpectedStart, Reserved)


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
        _entry(position, number, shards[number], place, now)
        for position, (number, place) in enumerate(_listed(shards, now), 1)
        if position > after and (visible is None or place.job.team in visible)
    )
    page = list(islice(shown, None if limit is None else limit + 1))
    entries = page[:limit]
    pending = [
        shard.state.jobs[job_id]
        for shard in shards
        for job_id in (*shard.state.pending, *shard.state.cpu_pending)
    ]
    return Queue(
        queue=entries,
        cursor=entries[-1].position if limit is not None and len(page) > limit else None,
        pending_jobs=len(pending),
        pending_gpus=sum(job.gpus for job in pending),
    )


def _listed(shards: Sequence[Shard], now: datetime) -> Iterator[tuple[int, Place]]:
    for number, shard in enumerate(shards):
        for place in listed(shard.state, now, shard.policy):
            yield number, place


def _entry(position: int, number: int, shard: Shard, place: Place, now: datetime) -> QueueEntry:
    job = place.job
    waiting, estimate = job.waiting, job.start_estimate
    return QueueEntry(
        position=position,
        job_id=job.job_id,
        name=job.spec.name,
        team=job.team,
        user=job.user,
        priority=job.priority,
        gpus=job.gpus,
        cpus=present.gang_cpus(job.spec),
        score=round(place.score, 3),
        waiting_since=job.waiting_since,
        waited_s=max(0.0, (now - job.waiting_since).total_seconds()),
        waiting=None
        if waiting is None
        else Waiting.model_validate(
            {"code": waiting.code, "message": waiting.message, "since": waiting.at}
        ),
        shard=number,
        order=None if job.cpu_only else order_parts(shard.state, job, now, shard.policy),
        comes_first=place.because,
        first_eta=None if estimate is None else estimate.start,
    )


def seen(outlook: QueueOutlook, visible: frozenset[str] | None) -> QueueOutlook:
    """The outlook without names of other teams' jobs."""
    if visible is None:
        return outlook
    return outlook.model_copy(
        update={
            "shards": [
                shard.model_copy(
                    update={
                        "starts": tuple(_nameless(item, visible) for item in shard.starts),
                        "reserved": tuple(_nameless(item, visible) for item in shard.reserved),
                    }
                )
                for shard in outlook.shards
            ]
        }
    )


def _nameless(item: NamedT, visible: frozenset[str]) -> NamedT:
    if item.team in visible:
        return item
    return item.model_copy(update={"job_id": None, "team": None})
