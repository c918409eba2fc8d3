"""Incidents: one failure from its verdict to the first step after it.

1. gang.failed opens one; an attempt that is not restarted closes it at once (job_failed).
2. gang.watched of the next attempt: it has its GPUs again. gang.running: all its ranks run.
3. At a Tick: the first step in a heartbeat closes it (recovered). A job that reported no step
   before the failure, nor within `hang_slow_s`, has recovered when it ran.
4. The next failure closes it too: recovered if the attempt got beyond its start, else failed_again.
   Later events belong to the new incident. The job's end also closes it (job_ended).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from gangline_faults.core.model import Gang, GangReports, OpenIncident
from gangline_faults.core.policy.timing import Timing
from gangline_faults.core.state import FaultPlan
from gangline_schemas.events.faults import GangFailed, GangRunning, IncidentClosed
from gangline_schemas.events.scheduling import JobStateChanged
from gangline_schemas.job import JobState

_OF_THE_VERDICT = {*GangFailed.model_fields} & {*IncidentClosed.model_fields} - {"work_lost_s"}
"""The fields of a closed incident that are as in its gang.failed."""
Outcome = Literal["recovered", "failed_again", "job_failed", "job_ended"]


def note_running(plan: FaultPlan, event: JobStateChanged, at: datetime) -> None:
    """All ranks of the attempt that follows a failure run, since `at`."""
    incident = plan.state.incidents.get(event.job_id)
    if event.state is not JobState.RUNNING or incident is None or incident.running_at is not None:
        return
    if incident.next_attempt == event.attempt:
        running = GangRunning(job_id=event.job_id, attempt=event.attempt, running_at=at)
        plan.add(event.job_id, running)


def close_recovered(plan: FaultPlan, timing: Timing) -> None:
    """Close the incidents whose jobs step again, or have run for long and never reported steps."""
    now = plan.now
    for job_id, incident in sorted(plan.state.incidents.items()):
        if incident.running_at is None:
            continue
        first = _first_step(plan.soft.gangs.get(job_id), incident)
        if first is None:
            tells_steps = incident.failed.last_step is not None
            ran_s = (now - incident.running_at).total_seconds()
            if tells_steps or ran_s < timing.hang_slow_s:
                continue
        plan.add(job_id, _closed(incident, "recovered", now, first))


def close_at_failure(plan: FaultPlan, job_id: str, last_step: int | None) -> None:
    """The next attempt failed before it was known to step: at most one decision."""
    incident = plan.state.incidents.get(job_id)
    if incident is None:
        return
    stepped = incident.running_at is not None and _is_new(last_step, incident)
    outcome: Outcome = "recovered" if stepped else "failed_again"
    plan.add(job_id, _closed(incident, outcome, plan.now))


def close_failed(plan: FaultPlan, verdict: GangFailed) -> None:
    """The job is not started again: the incident is over with the verdict."""
    closed = _closed(OpenIncident(verdict), "job_failed", verdict.failed_at)
    plan.add(verdict.job_id, closed)


def close_at_end(plan: FaultPlan, event: JobStateChanged, at: datetime) -> None:
    """The job ended while an incident was open."""
    incident = plan.state.incidents.get(event.job_id)
    if incident is None:
        return
    recovered = event.state is JobState.SUCCEEDED and incident.running_at is not None
    outcome: Outcome = "recovered" if recovered else "job_ended"
    plan.add(event.job_id, _closed(incident, outcome, at))


def works_since(
    incident: OpenIncident | None, gang: Gang, last_step: int | None
) -> datetime | None:
    """Since when the attempt makes progress; None: it never did, or it is not known."""
    if incident is None:
        return gang.since
    return incident.running_at if _is_new(last_step, incident) else None


def last_step_of(reports: GangReports | None, attempt: int, exited_at: int | None) -> int | None:
    """The last step that an attempt's ranks reported, by heartbeat or exit."""
    steps = [exited_at]
    if reports is not None and reports.attempt == attempt:
        steps += [status.step for _, ranks in reports.ranks.values() for status in ranks]
    return max((step for step in steps if step is not None), default=None)


def _first_step(reports: GangReports | None, incident: OpenIncident) -> datetime | None:
    """When a rank ended a step, as the earliest heartbeat says that has one; None: none has."""
    if reports is None or reports.attempt != incident.next_attempt:
        return None
    found = [
        at - timedelta(seconds=status.quiet_s or 0.0)
        for at, ranks in reports.ranks.values()
        for status in ranks
        if _is_new(status.step, incident)
    ]
    if not found or incident.running_at is None:
        return None
    return max(min(found), incident.running_at)


def _is_new(step: int | None, incident: OpenIncident) -> bool:
    return step is not None and (incident.resume_step is None or step > incident.resume_step)


def _closed(
    incident: OpenIncident,
    outcome: Outcome,
    now: datetime,
    first_step_at: datetime | None = None,
) -> IncidentClosed:
    verdict = incident.failed
    recovered_at = (first_step_at or incident.running_at) if outcome == "recovered" else None
    until = recovered_at or now
    down_s = max(0.0, (until - verdict.failed_at).total_seconds())
    work_lost_s = _work_lost_s(incident)
    return IncidentClosed(
        **verdict.model_dump(include=_OF_THE_VERDICT),
        resume_step=incident.resume_step,
        next_attempt=incident.next_attempt,
        allocated_at=incident.allocated_at,
        running_at=incident.running_at,
        first_step_at=first_step_at,
        outcome=outcome,
        closed_at=now,
        recover_s=None if recovered_at is None else down_s,
        work_lost_s=work_lost_s,
        down_s=down_s,
        lost_gpu_s=(work_lost_s + down_s) * verdict.world_size,
    )


def _work_lost_s(incident: OpenIncident) -> float:
    """As the verdict said, or in proportion less if a newer checkpoint was committed after it."""
    verdict = incident.failed
    known, last, start = verdict.committed_step or 0, verdict.last_step, incident.resume_step
    if last is None or start is None or not known < start:
        return verdict.work_lost_s
    return verdict.work_lost_s * max(0, last - start) / max(1, last - known)
