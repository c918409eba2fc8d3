"""The outlook of a queue: expected starts of its first jobs, and the GPUs that are reserved.

The starts come from one run of the production pass ahead of time (forecast.py), in which the first
`JOBS` wait and no others. So `explain`, which looks at the jobs before one job alone, may say
another time. Jobs without GPUs come behind, with places of their own queue. Reserved GPUs are those
of the pass's own reservations (policy/reservation.py), and those that gangs free for a job.

Cost: a pass for each of at most `ENDS` ends, over at most `JOBS` jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice

from gangline_scheduler.core import cpu_jobs
from gangline_scheduler.core.cycle import reservations
from gangline_scheduler.core.forecast import Forecast, cpu_forecasts, forecasts
from gangline_scheduler.core.listing import starting_order
from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.estimate import Estimates
from gangline_scheduler.core.policy.reservation import Reservation
from gangline_scheduler.core.questions import wait_miss
from gangline_scheduler.core.reserved_gpus import by_promise, free_for
from gangline_scheduler.core.state import State
from gangline_schemas.api.questions import ExpectedStart, NodeGpus, Reserved, ShardOutlook

JOBS = 100
ENDS = 100


def outlook(state: State, now: datetime, policy: Policy, shard: int = 0) -> ShardOutlook:
    """The outlook of one shard's queue now."""
    first = list(islice(starting_order(state, now, policy), JOBS))
    without = cpu_jobs.in_order(state)[:JOBS]
    found = forecasts(state, [job.job_id for job in first], now, policy, most_ends=ENDS)
    names = [job.job_id for job in without]
    found |= cpu_forecasts(state, names, now, policy, most_ends=ENDS)
    return ShardOutlook(
        shard=shard,
        order=policy.order.name,
        gpus_free=free_for(state, policy).free.total(),
        gpus_total=state.empty.total(),
        starts=tuple(
            _start(place, job, found[job.job_id], state, policy)
            for queue in (first, without)
            for place, job in enumerate(queue, 1)
        ),
        reserved=(*_freed(state, now), *_kept(state, now, policy)),
        wait_error=wait_miss(state),
    )


def _start(place: int, job: Job, expected: Forecast, state: State, policy: Policy) -> ExpectedStart:
    start = expected.start
    exact = start is not None and expected.exact
    return ExpectedStart(
        position=place,
        job_id=job.job_id,
        team=job.team,
        gpus=job.gpus,
        start=start,
        start_is="estimate" if exact or start is None else "at_least",
        end=_end(job, start, state, policy) if exact and start is not None else None,
        nodes=expected.nodes,
        level=expected.level,
    )


def _end(job: Job, start: datetime, state: State, policy: Policy) -> datetime:
    """When a job that starts then is expected to end."""
    return Estimates(state, start, policy.default_runtime.total_seconds()).end(job)


def _freed(state: State, now: datetime) -> Iterator[Reserved]:
    """GPUs for which gangs stop: those that are promised sooner come first."""
    for job_id, reserved in by_promise(state):
        yield Reserved(
            job_id=job_id,
            team=state.jobs[job_id].team if job_id in state.jobs else None,
            kind="freed",
            gpus=sum(gpus for _, gpus in reserved.nodes),
            start=now,
            end=max(now, reserved.until),
            nodes=tuple(NodeGpus(node_id=node, gpus=gpus) for node, gpus in reserved.nodes),
            reason=reserved.reason,
            victims=len(reserved.victims),
        )


def _kept(state: State, now: datetime, policy: Policy) -> Iterator[Reserved]:
    for item in reservations(state, now, policy):
        job = state.jobs[item.job_id]
        yield Reserved(
            job_id=item.job_id,
            team=job.team,
            kind="guarantee" if item.claim else "reservation",
            gpus=sum(len(part.gpus) for part in item.placement.parts),
            kept_now=sum(gpus for _, gpus in item.kept),
            start=item.start,
            end=_end(job, item.start, state, policy),
            nodes=_nodes(item),
        )


def _nodes(item: Reservation) -> tuple[NodeGpus, ...]:
    return tuple(
        NodeGpus(node_id=part.node_id, gpus=len(part.gpus)) for part in item.placement.parts
    )
