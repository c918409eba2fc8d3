"""Decisions about the interval that a gang is advised to save at."""

from __future__ import annotations

from datetime import datetime

from gangline_bus.decision import Decision
from gangline_checkpoints.policy.interval import (
    CEILING_S,
    ENOUGH_SAVES,
    SAVES,
    STORE_SHARE,
    Advice,
    Failures,
    Save,
    advise,
    differs,
    failure_rate,
)
from gangline_checkpoints.state import CheckpointState
from gangline_schemas.events.checkpoints import (
    AttemptNoted,
    CheckpointCommitted,
    IntervalAdvised,
)


def of_attempt(state: CheckpointState, noted: AttemptNoted) -> list[Decision]:
    """What the job's earlier saves advise its next attempt; [] when too few were of its size."""
    job = state.jobs.get(noted.job_id)
    if job is None or job.world_size != noted.world_size or len(job.saves) < ENOUGH_SAVES:
        return []
    rate = failure_rate(state.failures, job.failures)
    found = advise(job.saves, noted.world_size, rate)
    return [_told(noted.job_id, noted.attempt, found, job.failures)]


def of_save(
    state: CheckpointState, committed: CheckpointCommitted, now: datetime
) -> list[Decision]:
    """What follows with one more save; [] when the attempt knows it already, but for a fifth."""
    job_id, point = committed.job_id, committed.checkpoint
    job = state.jobs[job_id]
    save = Save(committed.blocked_s, committed.write_s, committed.verify_s)
    saves = (*job.saves, save)[-SAVES:]
    if len(saves) < ENOUGH_SAVES:
        return []
    ran_s = (now - job.allocated_at).total_seconds() if job.allocated_at is not None else 0.0
    running = Failures(0.0, max(0.0, ran_s) * point.world_size / 3600)
    rate = failure_rate(state.failures, job.failures.plus(running))
    found = advise(saves, point.world_size, rate)
    if job.advised_s is not None and not differs(job.advised_s, found.interval_s):
        return []
    return [_told(job_id, point.attempt, found, job.failures)]


def _told(job_id: str, attempt: int, found: Advice, seen: Failures) -> Decision:
    event = IntervalAdvised(
        job_id=job_id,
        attempt=attempt,
        interval_s=found.interval_s,
        limited_by=found.limited_by,
        cost_s=round(found.cost_s, 6),
        busy_s=round(found.busy_s, 6),
        mtbf_s=round(found.mtbf_s, 3),
        failures=seen.count,
        lost_s=round(found.lost_s, 6),
        reason=_reason(found),
        risk=_risk(found),
    )
    return Decision(job_id, event)


def _reason(found: Advice) -> str:
    facts = (
        f"a save costs training {_time(found.cost_s)}, and a failure is expected every "
        f"{_time(found.mtbf_s)}"
    )
    match found.limited_by:
        case "optimum":
            return f"{facts}: least is lost at this interval"
        case "ceiling":
            return f"{facts}: longer would do, but {_time(CEILING_S)} are the most"
        case "floor":
            return f"{facts}: shorter would do, but each save is kept in a log"
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
