"""Gangs that run, stop and have GPUs, for tests of preemption."""

from __future__ import annotations

from collections.abc import Sequence

from gangline_schemas.base import Event
from gangline_schemas.events.scheduling import GpusReserved, StopReason
from support.builders.deciding import only
from support.builders.scheduler import Cluster, node, stopped_for

HOUR = 3600.0
RUNS: dict[str, object] = {"preemptible": True, "expected_runtime_hours": 20}
URGENT: dict[str, object] = {"priority": 10, "expected_runtime_hours": 1}


def running(*jobs: str, gpus: int = 1, cluster: Cluster | None = None, **fields: object) -> Cluster:
    """A cluster of one node of four GPUs on which these jobs have run for an hour."""
    cluster = cluster or Cluster(node(gpus=4))
    for job_id in jobs:
        cluster.run(job_id, gpus, **{**RUNS, **fields})
    cluster.tick(seconds=HOUR)
    return cluster


def stopped(events: Sequence[Event]) -> list[str]:
    return sorted(stopped_for(events, StopReason.PREEMPTED))


def reservation(events: Sequence[Event]) -> GpusReserved:
    return only(events, GpusReserved)
