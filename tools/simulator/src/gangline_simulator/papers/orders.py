"""Preemptive textbook orders: SRTF, SRSF and Tiresias, as the published simulators have them.

| name | lowest first | ties |
|---|---|---|
| srtf | expected remaining time | waiting jobs before running ones |
| srsf | expected remaining time x GPUs | the same |
| tiresias | GPU-seconds used so far: up to 18,000 or above, then submission | running jobs first |

Tiresias is its 2D-LAS with two queues.

FIFO and SJF are in the scheduler's `policy/order.py`. Running jobs stand in the same order, and
those that fall out of what fits are stopped (`rebalance.py`). The run time is the one that the user
expects; a job without one comes last. The costs of restarts count as remaining time.

Cost: a waiting job's place is kept (the scheduler's `queue.py`). Each pass sorts the running jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.order import Listed
from gangline_scheduler.core.state import State

QUEUE_SPLIT_GPU_S = 18_000.0
SecondsByGpus = Callable[[int], float]


def expected_s(job: Job) -> float:
    """The user's estimate of its time, in seconds to the millisecond; infinite without one."""
    hours = job.spec.expected_runtime_hours
    return math.inf if hours is None else _to_the_millisecond(hours)


@lru_cache(maxsize=8192)
def _to_the_millisecond(hours: float) -> float:
    # A pass asks for each running job, and rounding costs more than the rest of its place.
    return round(hours * 3600.0, 3)


def no_restart_cost(gpus: int) -> float:  # noqa: ARG001 - the others' shape
    """Starting again costs nothing."""
    return 0.0


def philly_restart_s(gpus: int) -> float:
    """The seconds that the Philly simulators add to a job for each preemption."""
    return 40.0 if gpus <= 8 else 60.0


class ShortestRemaining(Listed):
    """Shortest remaining time first; by remaining GPU time when `by_gpus` (SRSF)."""

    def __init__(
        self, restart_s: SecondsByGpus = no_restart_cost, *, by_gpus: bool = False
    ) -> None:
        super().__init__("srsf" if by_gpus else "srtf", self._waiting_place, strict=False)
        self._restart_s = restart_s
        self._by_gpus = by_gpus

    def rank(self, job: Job, state: State, now: datetime) -> tuple[Any, ...]:  # noqa: ARG002
        """Its place now, with ties by whether and how long it waits."""
        if job.gang is None:
            return (*self._waiting_place(job), job.job_id)
        at = job.gang.allocated_at
        return self._value(job, job.ran_by(now)), True, at, job.submitted_at, job.job_id

    def _waiting_place(self, job: Job) -> tuple[Any, ...]:
        return self._value(job, job.ran_s), False, job.waiting_since, job.submitted_at

    def _value(self, job: Job, ran_s: float) -> float:
        restarts = job.attempt if job.gang is None else job.attempt - 1
        cost_s = restarts * self._restart_s(job.gpus) if restarts > 0 else 0.0
        return (expected_s(job) + cost_s - ran_s) * (job.gpus if self._by_gpus else 1)


class Tiresias(Listed):
    """Two queues by GPU time used so far, first in first out in each."""

    def __init__(self, split_gpu_s: float = QUEUE_SPLIT_GPU_S) -> None:
        super().__init__("tiresias", self._waiting_place, strict=False)
        self._split_gpu_s = split_gpu_s

    def rank(self, job: Job, state: State, now: datetime) -> tuple[Any, ...]:  # noqa: ARG002
        """Its place now."""
        if job.gang is None:
            return (*self._waiting_place(job), job.job_id)
        low = job.gpus * job.ran_by(now) > self._split_gpu_s
        return low, job.submitted_at, False, job.gang.allocated_at, job.job_id

    def next_change(self, state: State, now: datetime) -> datetime | None:
        """When the next running job leaves the first queue for the second; None: none will."""
        soonest: datetime | None = None
        for job_id in state.live:
            job = state.jobs[job_id]
            left_gpu_s = self._split_gpu_s - job.gpus * job.ran_by(now)
            if left_gpu_s >= 0:
                at = now + timedelta(seconds=left_gpu_s // job.gpus + 1)
                soonest = at if soonest is None else min(soonest, at)
        return soonest

    def _waiting_place(self, job: Job) -> tuple[Any, ...]:
        low = job.gpus * job.ran_s > self._split_gpu_s
        return low, job.submitted_at, True, job.waiting_since
