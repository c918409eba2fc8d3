"""Quota's answer to a dry run: quota's own functions, over its state as the live model has it.

The rule for approvals of data is the gateway's own setting `data_approvals`, as no event names
quota's. If the two differ, so do the answers.

Cost: the active jobs; a second pass over those that run if a team of the job's line has a budget.
"""

from __future__ import annotations

from datetime import datetime

from gangline_gateway import job_ids
from gangline_gateway.gate import Gate
from gangline_gateway.live import Live
from gangline_gateway.usage import usage
from gangline_quota.core.admission import must_wait, never_runs
from gangline_quota.core.state import ActiveJob, Budget, EndedJob, State
from gangline_schemas import gpu_time
from gangline_schemas.job import JobSpec
from gangline_schemas.teams import line

DRY_RUN_SUFFIX = "0" * job_ids.SUFFIX_CHARS
"""Ends the id of a job that is not submitted."""


def quota_notes(gate: Gate, spec: JobSpec) -> tuple[list[str], bool]:
    """Quota's reasons against the job, and whether quota would reject it.

    Raises a 503 problem if `resume_from` names a run that only history knows, and history is away.
    """
    live, source = gate.tail.view(), spec.resume_from
    state = _state(live, spec.team, gate.clock())
    state.unfinished[spec.team] = sum(job.team == spec.team for job in live.active())
    if source is not None:
        known = _active(live, source)
        if known is not None:
            state.active[source] = known
        elif (over := _over(live, source) or _past(gate, spec.team, source)) is not None:
            state.ended[source] = over
    job_id = job_ids.job_id(spec.name, DRY_RUN_SUFFIX)
    never = never_runs(state, job_id, spec, gate.data_approvals)
    if never is not None:
        return [f"the job would be rejected: {never}"], True
    note = must_wait(state, spec)
    return ([] if note is None else [f"the job {note}"]), False


def _state(live: Live, team: str, now: datetime) -> State:
    """Quota's state without jobs, as far as it concerns this team."""
    teams = {name: known.config for name, known in live.teams.items()}
    has_budget = any(config.gpu_hours_per_month is not None for config in line(teams, team))
    return State(
        teams=teams,
        budgets=_budgets(live, now) if has_budget else {},
        held=dict(live.used_gpus()),
        approvals={use: given.user for use, given in live.approvals.items()},
    )


def _budgets(live: Live, now: datetime) -> dict[str, Budget]:
    month = gpu_time.month_of(now)
    return {
        one.config.team: Budget(month, one.out_of_budget, gpu_time.hours(one.month_us))
        for one in usage(live, now)
    }


def _active(live: Live, job_id: str) -> ActiveJob | None:
    job = live.jobs.get(job_id)
    if job is None or job.ended:
        return None
    return ActiveJob(job.team, job.digest, "", job.priority)


def _over(live: Live, job_id: str) -> EndedJob | None:
    job = live.jobs.get(job_id)
    if job is None or job.ended_at is None:
        return None
    return EndedJob(job.team, job.digest, "", job.state, job.ended_at)


def _past(gate: Gate, team: str, job_id: str) -> EndedJob | None:
    past = gate.past.ask(lambda questions: questions.history.run(job_id, frozenset({team})))
    if past is None:
        return None
    run = past.run
    return EndedJob(run.team, "", "", run.state, run.ended_at or run.submitted_at)
