"""Explain for jobs without GPUs: why one waits, and its place in their queue."""

from __future__ import annotations

from gangline_scheduler.core.cpu_jobs import in_order
from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.cpu_placement import CpuNodes
from gangline_scheduler.core.policy.cpu_reasons import reason
from gangline_scheduler.core.state import State
from gangline_schemas.api.questions import AheadJob, GpuNumbers, JobExplained, Outlook

AHEAD_SHOWN = 5
NO_ESTIMATE = "the start of jobs without GPUs is not estimated"


def explain(state: State, job: Job) -> JobExplained:
    """The answer for one that waits. Cost: the queue of jobs without GPUs, and O(nodes)."""
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
        outlook=Outlook(eta_reason=NO_ESTIMATE),
    )
