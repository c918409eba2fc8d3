"""The report `weekly`: the figures of a week. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gangline_gateway.reports.arithmetic import (
    first_wait_s,
    gpu_hours_allocated,
    gpu_hours_pending,
    mean_mfu,
    preemption_gpu_hours,
    quantile,
    ratio,
    repairs_s,
)
from gangline_gateway.reports.facts import HOUR_S, Facts, Job, Period
from gangline_gateway.reports.utilization import cluster_use
from gangline_schemas.api.reports import LowMfu, UnusedQuota, Waits, Week

SIZES = ((1, 1), (2, 8), (9, 32), (33, 128), (129, None))
"""Classes by requested GPUs: from and to; None: no upper limit."""
PRIORITIES = ((0, 19), (20, 49), (50, 79), (80, 100))
UNUSED_BELOW = 0.5
LOW_MFU_BELOW = 0.3
MAX_LOW_MFU = 100


def figures(facts: Facts, teams: frozenset[str] | None) -> Week:
    """One week's figures for a caller who sees these teams (None: all)."""
    seen, period = facts.of(teams), facts.period
    jobs = seen.jobs
    ended = [job.state for job in jobs if period.holds(job.ended_at)]
    repairs = [repair for job in jobs for repair in repairs_s(job, period)]
    costs = [cost for job in jobs for cost in preemption_gpu_hours(job, period)]
    return Week(
        since=period.since,
        until=period.until,
        cluster=cluster_use(facts),
        mfu=mean_mfu(seen.mfu),
        gpu_hours_pending=gpu_hours_pending(jobs, period),
        jobs_submitted=sum(period.holds(job.submitted_at) for job in jobs),
        jobs_ended=len(ended),
        jobs_succeeded=ended.count("succeeded"),
        jobs_failed=ended.count("failed"),
        jobs_cancelled=ended.count("cancelled"),
        completion_rate=ratio(ended.count("succeeded"), len(ended)),
        wait=_waits("all", jobs, period),
        wait_by_gpus=[
            _waits(_name(low, high), (j for j in jobs if _within(j.gpus, low, high)), period)
            for low, high in SIZES
        ],
        wait_by_priority=[
            _waits(_name(low, high), (j for j in jobs if low <= j.priority <= high), period)
            for low, high in PRIORITIES
        ],
        failures=sum(period.holds(gang.failed_at) for job in jobs for gang in job.gangs),
        repairs=len(repairs),
        mttr_s=ratio(sum(repairs), len(repairs)),
        preemptions=len(costs),
        preemption_gpu_hours=sum(costs),
        unused_quota=_unused(seen),
        low_mfu=_low_mfu(seen),
    )


def _within(value: int, low: int, high: int | None) -> bool:
    return low <= value and (high is None or value <= high)


def _name(low: int, high: int | None) -> str:
    if high is None:
        return f"> {low - 1}"
    return f"{low}" if low == high else f"{low}-{high}"


def _waits(name: str, jobs: Iterable[Job], period: Period) -> Waits:
    found: list[float] = []
    waiting = 0
    for job in jobs:
        wait_s = first_wait_s(job, period)
        if wait_s is not None:
            found.append(wait_s)
        waiting += not job.gangs and job.ended_at is None
    return Waits(
        name=name,
        jobs=len(found),
        p50_s=quantile(found, 0.5),
        p95_s=quantile(found, 0.95),
        waiting=waiting,
    )


def _unused(facts: Facts) -> list[UnusedQuota]:
    hours = facts.period.length_s / HOUR_S
    found: list[UnusedQuota] = []
    for team, own in facts.by_team().items():
        guarantee = own.quotas[0].gpu_guarantee if own.quotas else 0
        mean = gpu_hours_allocated(own.jobs, own.period) / hours
        used = ratio(mean, guarantee)
        if used is not None and used < UNUSED_BELOW:
            found.append(
                UnusedQuota(team=team, gpu_guarantee=guarantee, gpus_allocated_mean=mean, used=used)
            )
    return sorted(found, key=lambda item: (item.used, item.team))


def _low_mfu(facts: Facts) -> Sequence[LowMfu]:
    jobs = {job.job_id: job for job in facts.jobs}
    found = [
        LowMfu(
            job_id=run.job_id,
            team=run.team,
            name=jobs[run.job_id].name,
            mfu=run.mean,
            gpu_hours=gpu_hours_allocated([jobs[run.job_id]], facts.period),
        )
        for run in facts.mfu
        if run.mean < LOW_MFU_BELOW and run.job_id in jobs
    ]
    found.sort(key=lambda item: (-item.gpu_hours, item.job_id))
    return found[:MAX_LOW_MFU]
