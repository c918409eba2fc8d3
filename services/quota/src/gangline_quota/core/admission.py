"""Admission: why a job can never run, and what it must wait for. One sentence each, with numbers.

A job must fit at every level of its team's line (the team and the teams above it). The sentence
names the tightest level. An elastic job needs its `min_gpus`. The sentence of `must_wait` is
written to the log with the admission. The scheduler later gives the current reason for waiting,
which is more exact.

Cost: the depth of the tree; for `must_wait` the teams with allocated GPUs.
"""

from __future__ import annotations

from gangline_quota.core.cpu_admission import above_cpus, waits_for_cpus
from gangline_quota.core.state import EndedJob, State
from gangline_schemas import gpu_time
from gangline_schemas.data_use import ApprovalRule, cannot_use
from gangline_schemas.gpus import covered_by
from gangline_schemas.job import JobSpec
from gangline_schemas.resources import Resources
from gangline_schemas.teams import line, lowest, rolled_up, tightest, type_limits, type_names
from gangline_schemas.unsupported import cannot_do


def never_runs(
    state: State,
    job_id: str,
    spec: JobSpec,
    rule: ApprovalRule = ApprovalRule.OFF,
    *,
    has_start: bool = False,
) -> str | None:
    """Why the job can never run; None if it can. `rule` selects the data that needs approval.

    `has_start`: it names a registered checkpoint, whose run may be forgotten.
    """
    if spec.team not in state.teams:
        names = ", ".join(sorted(state.teams)) or "none"
        return f"team '{spec.team}' is not known; known: {names}"
    return (
        cannot_do(spec)
        or _too_many_jobs(state, spec)
        or (_above_gpu_limits(state, spec) if spec.resources.gpus else above_cpus(state, spec))
        or (None if has_start else _cannot_resume(state, job_id, spec))
        or cannot_use(rule, state.approvals, spec)
    )


def must_wait(state: State, spec: JobSpec) -> str | None:
    """Why an admitted job will not start at once, as far as quota knows; None: no known reason."""
    levels = line(state.teams, spec.team)
    if spec.resources.gpus == 0:
        return waits_for_cpus(state, spec)
    for config in levels:
        budget = state.budgets.get(config.team)
        if budget is not None and budget.exhausted and config.gpu_hours_per_month is not None:
            return (
                f"must wait: team {config.team} has spent {_amount(budget.spent_hours)} of its "
                f"{_amount(config.gpu_hours_per_month)} GPU-hours of {budget.month}; jobs start "
                "again with the next month (UTC), or when gpu_hours_per_month is raised"
            )
    need = needed(spec.resources)
    allocated = rolled_up(state.teams, state.allocated)
    for config in levels:
        if allocated[config.team] + need > config.ceiling:
            return (
                f"must wait: team {config.team} has {allocated[config.team]} of the "
                f"{config.ceiling} GPUs that it may ever use, and the job needs {need}"
            )
    for config in levels:
        above = allocated[config.team] + need - config.gpu_limit
        if above > 0:
            return (
                f"must borrow {above} GPUs above the {config.gpu_limit} of team {config.team}: "
                "it starts while no other team waits for what it is guaranteed"
            )
    return None


def needed(resources: Resources) -> int:
    """The fewest GPUs that the gang can start with."""
    return resources.gpus if resources.min_gpus is None else resources.min_gpus


def _too_many_jobs(state: State, spec: JobSpec) -> str | None:
    unfinished, limit = state.unfinished.get(spec.team, 0), state.teams[spec.team].job_limit
    if unfinished < limit:
        return None
    return (
        f"team {spec.team} has {unfinished:,} jobs that have not ended, and its job_limit is "
        f"{limit:,}: submit again when some have ended, or raise job_limit"
    )


def _above_gpu_limits(state: State, spec: JobSpec) -> str | None:
    return (
        _above_ceiling(state, spec) or _above_type_limits(state, spec) or _above_budget(state, spec)
    )


def _above_ceiling(state: State, spec: JobSpec) -> str | None:
    need, top = needed(spec.resources), tightest(state.teams, spec.team)
    if need <= top.ceiling:
        return None
    return f"would exceed quota: {need}/{top.ceiling} GPUs of team {top.team}{_elastic(spec)}"


def _above_type_limits(state: State, spec: JobSpec) -> str | None:
    """A gang that names models is of one of them; one that names none may mix what is allowed."""
    allowed = type_limits(state.teams, spec.team)
    if allowed is None:
        return None
    need, may = needed(spec.resources), type_names(allowed)
    if not spec.resources.gpu_type:
        each = {lowest(limits) for limits in allowed.values()}
        total = sum(limit.gpu_limit for limit in each if limit.gpu_limit is not None)
        if any(limit.gpu_limit is None for limit in each) or need <= total:
            return None
        return (
            f"would exceed quota: {need}/{total} GPUs of all models that team {spec.team} may use "
            f"({may}){_elastic(spec)}"
        )
    wanted = dict.fromkeys(name.lower() for name in spec.resources.gpu_type)
    usable = [lowest(allowed[model]) for model in covered_by(wanted) if model in allowed]
    if not usable:
        return f"team {spec.team} may not use {' or '.join(wanted)}; it may use {may}"
    most, name, owner = -1, "", ""
    for limit in usable:
        if limit.gpu_limit is None or need <= limit.gpu_limit:
            return None
        if limit.gpu_limit > most:
            most, name, owner = limit.gpu_limit, limit.gpu_type, limit.team
    return f"would exceed quota: {need}/{most} {name} GPUs of team {owner}{_elastic(spec)}"


def _above_budget(state: State, spec: JobSpec) -> str | None:
    """Only a job that says how long it runs, and costs more than a whole month has."""
    field = "expected_runtime_hours" if spec.expected_runtime_hours else "max_runtime_hours"
    runtime = spec.expected_runtime_hours or spec.max_runtime_hours
    budgets = [
        (config.gpu_hours_per_month, config.team)
        for config in line(state.teams, spec.team)
        if config.gpu_hours_per_month is not None
    ]
    if runtime is None or not budgets:
        return None
    need, (budget, owner) = needed(spec.resources), min(budgets, key=lambda item: item[0])
    if need * gpu_time.budget_us(runtime) <= gpu_time.budget_us(budget):
        return None
    return (
        f"would exceed quota: {_amount(need * runtime)}/{_amount(budget)} GPU-hours a month of "
        f"team {owner} ({need} GPUs for {field} {_amount(runtime)}){_elastic(spec)}"
    )


def _cannot_resume(state: State, job_id: str, spec: JobSpec) -> str | None:
    """A run is known once admitted, so a chain of `resume_from` can only close on itself here."""
    source = spec.resume_from
    if source is None:
        return None
    if source == job_id:
        return f"resume_from is cyclic: job '{source}' would resume from itself"
    known = state.known(source)
    if known is None or known.team != spec.team:
        return f"resume_from: team {spec.team} has no run '{source}'"
    if isinstance(known, EndedJob) and known.outcome == "rejected":
        return f"resume_from: job '{source}' was rejected, so it has no checkpoint"
    return None


def _elastic(spec: JobSpec) -> str:
    return "" if spec.resources.min_gpus is None else " even at its min_gpus"


def _amount(number: float) -> str:
    return f"{number:.12g}"
