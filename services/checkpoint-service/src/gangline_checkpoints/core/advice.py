"""Decisions about the interval that a gang is advised to save at."""

from __future__ import annotations

from datetime import datetime

from gangline_checkpoints.core.model import Job
from gangline_checkpoints.core.policy.interval import (
    CEILING_S,
    ENOUGH_SAVES,
    STORE_SHARE,
    SUSPECTED_S,
    Advice,
    Failures,
    advise,
    differs,
    failure_rate,
)
from gangline_checkpoints.core.state import CheckpointPlan, CheckpointState
from gangline_schemas.clocks import near
from gangline_schemas.events.checkpoints import AttemptNoted, IntervalAdvised
from gangline_schemas.events.faults import CheckpointRequested

LEAST_S = 0.001
"""As short a time as is said."""


def of_attempt(state: CheckpointState, noted: AttemptNoted) -> IntervalAdvised | None:
    """The interval that earlier saves advise for the next attempt; None with too few saves."""
    job = state.jobs.get(noted.job_id)
    if job is None or job.world_size != noted.world_size or len(job.saves) < ENOUGH_SAVES:
        return None
    rate = failure_rate(state.failures, job.failures)
    found = advise(job.saves, noted.world_size, rate)
    return _advised(noted.job_id, noted.attempt, found, job.failures)


def of_save(plan: CheckpointPlan, job_id: str) -> None:
    """Advise after one more save, unless that is within a fifth of the attempt's present advice.

    A job that is over gets no advice: it may have been put away with this save.
    """
    state, now = plan.state, plan.now
    job = state.jobs.get(job_id)
    if job is None or len(job.saves) < ENOUGH_SAVES:
        return
    suspected_at = job.suspected_at if _recent(job.suspected_at, now) else None
    found = _while_it_runs(state, job, now, suspected=suspected_at is not None)
    if job.advised_s is None or differs(job.advised_s, found.interval_s):
        plan.add(job_id, _advised(job_id, job.attempt, found, job.failures, suspected_at))


def of_sign(plan: CheckpointPlan, request: CheckpointRequested) -> None:
    """A node reported a sign of a failure: advise its gangs to save more often for a while.

    Not when the sign is too old, and not when too few saves were measured.
    """
    state, now = plan.state, plan.now
    job = state.jobs.get(request.job_id)
    if job is None or not job.live or job.attempt != request.attempt or request.node_id is None:
        return
    if len(job.saves) < ENOUGH_SAVES or not _recent(request.requested_at, now):
        return
    found = _while_it_runs(state, job, now, suspected=True)
    advised = _advised(request.job_id, request.attempt, found, job.failures, request.requested_at)
    plan.add(request.job_id, advised)


def _while_it_runs(state: CheckpointState, job: Job, now: datetime, *, suspected: bool) -> Advice:
    ran_s = (now - job.allocated_at).total_seconds() if job.allocated_at is not None else 0.0
    running = Failures(0.0, max(0.0, ran_s) * job.world_size / 3600)
    rate = failure_rate(state.failures, job.failures.plus(running))
    return advise(job.saves, job.world_size, rate, suspected=suspected)


def _recent(suspected_at: datetime | None, now: datetime) -> bool:
    return suspected_at is not None and near(suspected_at, now, SUSPECTED_S)


def _advised(
    job_id: str,
    attempt: int,
    found: Advice,
    seen: Failures,
    suspected_at: datetime | None = None,
) -> IntervalAdvised:
    return IntervalAdvised(
        job_id=job_id,
        attempt=attempt,
        interval_s=found.interval_s,
        limited_by=found.limited_by,
        cost_s=round(found.cost_s, 6),
        busy_s=round(found.busy_s, 6),
        mtbf_s=max(LEAST_S, round(found.mtbf_s, 3)),
        failures=seen.count,
        lost_s=round(found.lost_s, 6),
        reason=_reason(found, suspected=suspected_at is not None),
        risk=_risk(found),
        suspected_at=suspected_at,
    )


def _reason(found: Advice, *, suspected: bool) -> str:
    facts = (
        f"a save costs training {_time(found.cost_s)}, and a failure is expected every "
        f"{_time(found.mtbf_s)}{', as a node reported a sign of one' if suspected else ''}"
    )
    match found.limited_by:
        case "optimum":
            return f"{facts}: least is lost at this interval"
        case "ceiling":
            return f"{facts}: longer would do, but {_time(CEILING_S)} is the limit"
        case "floor":
            return f"{facts}: shorter would do, but each save adds to a log"
        case "storage":
            return (
                f"a save keeps the store busy for {_time(found.busy_s)}, which is to be at most "
                f"{STORE_SHARE:.0%} of the time"
            )


def _risk(found: Advice) -> str:
    if found.limited_by != "storage":
        return ""
    lost = f"the store is slow: a failure is expected to cost {_time(found.lost_s)} of work"
    if found.interval_s <= CEILING_S:
        return lost
    return f"{lost}, as saves are further apart than the {_time(CEILING_S)} that hold otherwise"


def _time(seconds: float) -> str:
    """Three digits in a unit of their size: 2.53 ms, 30 s, 10 min, 1,350 h."""
    if seconds < 0.1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 300:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    hours = seconds / 3600
    return f"{hours:.3g} h" if hours < 100 else f"{hours:,.0f} h"
