"""Elastic gangs, and what is seen of their sizes, for tests of the scheduler."""

from __future__ import annotations

from gangline_schemas.base import Event
from gangline_schemas.events.scheduling import GangStopping
from gangline_schemas.events.workers import ExitReason
from support.builders.deciding import every
from support.builders.scheduler import Cluster


def elastic(least: int | list[int], **fields: object) -> dict[str, object]:
    """Down to so many GPUs, or with just these numbers of them."""
    counts = {"gpu_counts": least, "min_gpus": least[0]} if isinstance(least, list) else None
    return {"resources": counts or {"min_gpus": least}} | fields


def stops(events: list[Event]) -> list[tuple[str, str, int | None]]:
    found = every(events, GangStopping)
    return [(event.job_id, event.reason.value, event.resize_to) for event in found]


def sizes(cluster: Cluster) -> dict[str, int]:
    return {name: cluster.job(name).allocated_gpus for name in cluster.state.live}


def gone(cluster: Cluster, job_id: str) -> list[Event]:
    """The ranks saved and left; what follows, with the next tick."""
    return [*cluster.exit(job_id, ExitReason.STOPPED), *cluster.tick(seconds=1)]
