"""Figures of reports: GPU-hours, waits, outages and costs over a period. Pure.

Each function reads its rows once, except one sort. GPU time is in hours, other time in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime

from gangline_gateway.reports.facts import (
    HOUR_S,
    Gang,
    GpuUse,
    Job,
    NodeChange,
    Period,
    RunMfu,
    waits,
)


def ratio(part: float, whole: float) -> float | None:
    """`part / whole`; None if `whole` is 0."""
    return part / whole if whole > 0 else None


def quantile(values: Iterable[float], share: float) -> float | None:
    """The smallest value that at least `share` of all do not exceed (nearest rank), or None.

    It is always one of the values, never interpolated.
    """
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def gpu_hours_up(changes: Sequence[NodeChange], period: Period) -> float:
    """GPUs of nodes that were up, integrated over the period. `changes` are in order of time."""
    seconds = 0.0
    since: dict[str, NodeChange] = {}
    for change in changes:
        before = since.get(change.node_id)
        if before is not None:
            seconds += before.gpus * period.overlap_s(before.time, change.time)
        since[change.node_id] = change
    seconds += sum(last.gpus * period.overlap_s(last.time, None) for last in since.values())
    return seconds / HOUR_S


def gpus_up(changes: Sequence[NodeChange]) -> int:
    """GPUs of nodes that are up after all changes."""
    return sum({change.node_id: change.gpus for change in changes}.values())


def gpu_hours_allocated(jobs: Iterable[Job], period: Period) -> float:
    """GPUs of gangs, integrated over the period from allocation to release."""
    seconds = sum(
        gang.gpus * period.overlap_s(gang.allocated_at, gang.released_at)
        for job in jobs
        for gang in job.gangs
    )
    return seconds / HOUR_S


def cpu_hours_allocated(jobs: Iterable[Job], period: Period) -> float:
    """The same for the CPUs of gangs without GPUs."""
    seconds = sum(
        gang.cpus * period.overlap_s(gang.allocated_at, gang.released_at)
        for job in jobs
        for gang in job.gangs
        if gang.cpus
    )
    return seconds / HOUR_S


def gpus_by_part(jobs: Iterable[Job], period: Period, count: int) -> list[float]:
    """Mean GPUs of gangs in each of so many equal parts of the period.

    Cost: O(gangs + parts that each gang lasted).
    """
    parts, seconds = period.parts(count), [0.0] * count
    for job in jobs:
        for gang in job.gangs:
            end = gang.released_at or period.until
            first = int((gang.allocated_at - period.since) / (period.until - period.since) * count)
            for index in range(max(0, first - 1), count):
                if parts[index].since > end:
                    break
                seconds[index] += gang.gpus * parts[index].overlap_s(gang.allocated_at, end)
    return [held / part.length_s for held, part in zip(seconds, parts, strict=True)]


def cost_allocated(jobs: Iterable[Job], period: Period) -> float | None:
    """The price of the same GPU-hours; None where a job's is not known, or there are none."""
    total = None
    for job in jobs:
        hours = gpu_hours_allocated([job], period)
        if hours and job.gpu_hour is None:
            return None
        if hours and job.gpu_hour is not None:
            total = (total or 0.0) + hours * job.gpu_hour
    return total


def gpus_allocated(jobs: Iterable[Job]) -> int:
    """GPUs of gangs that are not released at the end."""
    return sum(gang.gpus for job in jobs for gang in job.gangs if gang.released_at is None)


def gpu_hours_pending(jobs: Iterable[Job], period: Period) -> float:
    """GPUs asked for times the time that jobs waited for them within the period."""
    seconds = sum(
        job.gpus * period.overlap_s(start, end) for job in jobs for start, end in waits(job)
    )
    return seconds / HOUR_S


def gpus_pending(jobs: Iterable[Job]) -> int:
    """GPUs that jobs ask for and do not have at the end."""
    return sum(
        job.gpus
        for job in jobs
        if job.ended_at is None and (not job.gangs or job.gangs[-1].released_at is not None)
    )


def first_wait_s(job: Job, period: Period) -> float | None:
    """From submission to the first gang, when it was allocated in the period; else None."""
    if not job.gangs or not period.holds(job.gangs[0].allocated_at):
        return None
    return max(0.0, (job.gangs[0].allocated_at - job.submitted_at).total_seconds())


def repairs_s(job: Job, period: Period) -> list[float]:
    """From each failure to the next time the job ran, of those that ended in the period.

    Gangs that fail before they run belong to the current outage.
    """
    found: list[float] = []
    down_since: datetime | None = None
    for gang in job.gangs:
        if down_since is not None and gang.running_at is not None:
            if period.holds(gang.running_at):
                found.append(max(0.0, (gang.running_at - down_since).total_seconds()))
            down_since = None
        if down_since is None:
            down_since = gang.failed_at
    return found


def preemption_gpu_hours(job: Job, period: Period) -> list[float]:
    """The cost of each preemption in the period, in GPU-hours: three parts, as far as known.

    1. The gang keeps its GPUs from the request until their release, to save.
    2. Work since its last committed checkpoint is done again, unless it saved on the request.
    3. The next gang has its GPUs before it runs.
    """
    costs: list[float] = []
    for index, gang in enumerate(job.gangs):
        asked_at = gang.preempted_at
        if asked_at is None or not period.holds(asked_at):
            continue
        released_at = gang.released_at or period.until
        seconds = gang.gpus * ((released_at - asked_at).total_seconds() + _lost_s(gang, asked_at))
        if index + 1 < len(job.gangs):
            again = job.gangs[index + 1]
            start_s = (
                (again.running_at or again.allocated_at) - again.allocated_at
            ).total_seconds()
            seconds += again.gpus * start_s
        costs.append(max(0.0, seconds) / HOUR_S)
    return costs


def _lost_s(gang: Gang, asked_at: datetime) -> float:
    kept_at = gang.saved_at or gang.running_at or asked_at
    return max(0.0, (asked_at - kept_at).total_seconds())


def mean_busy(uses: Iterable[GpuUse]) -> float | None:
    """The mean over all samples of these teams; None if no GPU reported."""
    total, samples = 0.0, 0
    for use in uses:
        total += use.share * use.samples
        samples += use.samples
    return ratio(total, samples)


def mean_mfu(runs: Iterable[RunMfu]) -> float | None:
    """The mean over all steps of these runs; None if no run reported it."""
    total, steps = 0.0, 0
    for run in runs:
        total += run.mean * run.steps
        steps += run.steps
    return ratio(total, steps)
