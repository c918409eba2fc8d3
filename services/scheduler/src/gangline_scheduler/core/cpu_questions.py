"""Answers about jobs without GPUs: why one waits, and which would stop for a gang with GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gangline_scheduler.core.cpu_jobs import in_order
from gangline_scheduler.core.forecast import forecast
from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.cpu_placement import CpuNodes
from gangline_scheduler.core.policy.cpu_reasons import CpuReason, reason
from gangline_scheduler.core.state import State
from gangline_schemas.api.questions import AheadJob, GpuNumbers, JobExplained, Outlook, Victim
from gangline_schemas.base import Event
from gangline_schemas.events.scheduling import GangReleased

AHEAD_SHOWN = 5


def yielding(before: State, events: Sequence[Event], now: datetime) -> tuple[Victim, ...]:
    """The jobs without GPUs that stop at once for a gang with GPUs that starts."""
    stopped = [
        before.jobs[event.job_id]
        for event in events
        if isinstance(event, GangReleased) and event.job_id in before.cpu_live
    ]
    return tuple(Victim(job_id=job.job_id, team=job.team, gpus=0, deadline=now) for job in stopped)


def explain(state: State, job: Job, now: datetime, policy: Policy) -> JobExplained:
    """The answer for one that waits. Cost: the queue of jobs without GPUs, and a forecast."""
    queue = [other.job_id for other in in_order(state)]
    place = queue.index(job.job_id)
    found = reason(state, CpuNodes(state), job)
    same = job.waiting is not None and job.waiting.code == found.code
    return JobExplained(
        job_id=job.job_id,
        code=found.code,
        message=found.message,
        since=job.waiting.at if job.waiting is not None and same else job.waiting_since,
        position=place + 1,
        ahead=tuple(
            AheadJob(job_id=name, team=state.jobs[name].team, gpus=0)
            for name in queue[:place][:AHEAD_SHOWN]
        ),
        gpus=GpuNumbers(wanted=0, fewest=0, free=0, total=0),
        outlook=_outlook(state, job, queue[:place], found, now, policy),
    )


def _outlook(
    state: State, job: Job, ahead: Sequence[str], why: CpuReason, now: datetime, policy: Policy
) -> Outlook:
    if why.code == "shape":
        return Outlook(eta_reason="no nodes that are there could hold it beside their GPUs")
    found = forecast(state, job.job_id, ahead, now, policy)
    if found.start is None:
        said = "it would not start when all jobs without GPUs that run now have ended"
        if why.code == "quota":
            said = "its team may not have so many CPUs, whichever jobs end"
        return Outlook(eta_reason=said)
    return Outlook(
        eta=found.start,
        eta_is="estimate" if found.exact else "at_least",
        eta_reason="" if found.exact else "so much comes first that not all of it was looked at",
        nodes=found.nodes,
        level=found.level,
    )
