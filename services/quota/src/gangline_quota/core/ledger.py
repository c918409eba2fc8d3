"""The usage ledger: GPU time by meter, exact to the times of the scheduler's own events.

A meter starts with `gang.allocated` and is charged with `gang.released` of the same attempt. The
fold counts whole GPU-microseconds from those two times (evolve.py); `gpu_seconds` is for readers.
"""

from __future__ import annotations

from datetime import datetime

from gangline_bus.decision import Decision
from gangline_quota.core.state import State
from gangline_schemas import gpu_time
from gangline_schemas.events.quota import GangMetered, JobClosed, UsageCharged
from gangline_schemas.events.scheduling import GangAllocated, GangReleased, JobStateChanged


def metered(state: State, allocated: GangAllocated, at: datetime) -> list[Decision]:
    """Start the meter of an attempt of an active job, once."""
    job = state.active.get(allocated.job_id)
    if job is None or allocated.attempt <= job.metered:
        return []
    event = GangMetered(
        job_id=allocated.job_id,
        attempt=allocated.attempt,
        team=job.team,
        gpus=allocated.world_size,
        allocated_at=at,
    )
    return [Decision(allocated.job_id, event)]


def charged(state: State, released: GangReleased, at: datetime) -> list[Decision]:
    """Charge GPUs times seconds between the two events; nothing when no meter runs."""
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
    )
    return [Decision(released.job_id, event)]


def closed(state: State, changed: JobStateChanged) -> list[Decision]:
    """Note that an active job ended."""
    if not changed.state.terminal or changed.job_id not in state.active:
        return []
    return [Decision(changed.job_id, JobClosed(job_id=changed.job_id, state=changed.state))]
