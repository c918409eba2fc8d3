"""The usage ledger: GPU time by meter, exact to the times of the scheduler's own events.

A meter starts with `gang.allocated` and is charged with `gang.released` of the same attempt. The
fold counts whole GPU-microseconds from those two times (evolve.py); `gpu_seconds` is for readers.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypedDict

from gangline_bus.decision import Decision
from gangline_quota.core.state import Meter, State
from gangline_schemas import gpu_time
from gangline_schemas.events.quota import GangMetered, JobClosed, UsageCharged
from gangline_schemas.events.scheduling import GangAllocated, GangReleased, JobStateChanged

THOUSAND = 1000
"""CPUs are counted in thousandths."""


class CpuTime(TypedDict, total=False):
    """The fields of `usage.charged` of a job without GPUs."""

    cpus: float
    cpu_seconds: float


def metered(state: State, allocated: GangAllocated, at: datetime) -> list[Decision]:
    """Start the meter of an attempt of an active job, once."""
    job = state.active.get(allocated.job_id)
    if job is None or allocated.attempt <= job.metered:
        return []
    need = allocated.spec.resources
    event = GangMetered(
        job_id=allocated.job_id,
        attempt=allocated.attempt,
        team=job.team,
        gpus=allocated.world_size if need.gpus else 0,
        allocated_at=at,
        cpus=None if need.gpus else need.cpu_thousandths(allocated.world_size) / THOUSAND,
    )
    return [Decision(allocated.job_id, event)]


def charged(state: State, released: GangReleased, at: datetime) -> list[Decision]:
    """Charge GPUs (or CPUs) times seconds between the two; nothing when no meter runs."""
    meter = state.meters.get((released.job_id, released.attempt))
    if meter is None:
        return []
    amount = gpu_time.gpu_us(meter.gpus, meter.allocated_at, at)
    event = UsageCharged(
        job_id=released.job_id,
        attempt=released.attempt,
        team=meter.team,
        gpus=meter.gpus,
        allocated_at=meter.allocated_at,
        released_at=at,
        gpu_seconds=gpu_time.seconds(amount),
        **_cpu_time(meter, at),
    )
    return [Decision(released.job_id, event)]


def _cpu_time(meter: Meter, at: datetime) -> CpuTime:
    if meter.gpus:
        return {}
    amount = gpu_time.gpu_us(meter.cpus, meter.allocated_at, at)
    return {"cpus": meter.cpus / THOUSAND, "cpu_seconds": gpu_time.seconds(amount) / THOUSAND}


def closed(state: State, changed: JobStateChanged) -> list[Decision]:
    """Note that an active job ended."""
    if not changed.state.terminal or changed.job_id not in state.active:
        return []
    return [Decision(changed.job_id, JobClosed(job_id=changed.job_id, state=changed.state))]
