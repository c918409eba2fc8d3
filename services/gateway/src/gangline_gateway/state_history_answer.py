"""Answers about a past time, made like the live ones from the scheduler's state at that time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gangline_gateway.followed import Copies
from gangline_gateway.gpu_map import gpu_map
from gangline_gateway.live import Live
from gangline_gateway.live_view import LiveView
from gangline_gateway.queue import queue
from gangline_gateway.scheduling import Shard
from gangline_scheduler.core.model import Job
from gangline_schemas.api.history import JobAt, PlatformAt
from gangline_schemas.api.jobs import Placed, Waiting


def platform_at(
    shards: Sequence[Shard],
    events: int,
    at: datetime,
    visible: frozenset[str] | None,
    *,
    limit: int | None = None,
    nodes: bool = True,
) -> PlatformAt:
    """Jobs, queue and GPUs at a time, for a caller who sees these teams (None: all).

    `limit`: at most so many jobs, and so many places of the queue. `nodes`: whether the map has
    its nodes.
    """
    view = LiveView(Live(), Copies([shard.state for shard in shards]), Copies([]))
    found = (job for shard in shards for job in shard.state.jobs.values())
    seen = [job for job in found if visible is None or job.team in visible]
    seen.sort(key=lambda job: (not job.allocated_gpus, job.job_id))
    return PlatformAt(
        at=at,
        events=events,
        jobs=[_job(job) for job in seen[:limit]],
        jobs_all=len(seen),
        jobs_allocated=sum(job.allocated_gpus > 0 for job in seen),
        queue=queue(shards, at, visible, limit=limit),
        gpus=gpu_map(view, shards, at, visible, nodes=nodes),
    )


def _job(job: Job) -> JobAt:
    gang, waiting = job.gang, job.waiting if job.gang is None else None
    return JobAt(
        job_id=job.job_id,
        name=job.spec.name,
        team=job.team,
        project=job.spec.project,
        user=job.user,
        state=job.state.value,
        priority=job.priority,
        gpus=job.gpus,
        gpus_allocated=job.allocated_gpus,
        attempt=job.attempt,
        submitted_at=job.submitted_at,
        allocated_at=gang.allocated_at if gang is not None else None,
        waiting=None
        if waiting is None
        else Waiting(code=waiting.code, message=waiting.message, since=waiting.at),
        stopping=gang.stop.reason.value if gang is not None and gang.stop is not None else None,
        nodes=[
            Placed.model_validate(part, from_attributes=True)
            for part in (gang.nodes if gang is not None else ())
        ],
        checkpoint_step=job.checkpoints[-1].step if job.checkpoints else None,
    )
