"""Admission of jobs without GPUs: the CPUs that their teams may have at once, and by the month.

As for GPUs, a job must fit at every level of its team's line; without `cpu_limit` or
`cpu_hours_per_month` a level has no bound.
"""

from __future__ import annotations

from gangline_quota.core.ledger import THOUSAND
from gangline_quota.core.state import State
from gangline_schemas import gpu_time
from gangline_schemas.job import JobSpec
from gangline_schemas.teams import line, rolled_up


def above_cpus(state: State, spec: JobSpec) -> str | None:
    """Why a job without GPUs can never run; None if it can."""
    thousandths = spec.resources.cpu_thousandths(spec.resources.ranks)
    need = thousandths / THOUSAND
    levels = line(state.teams, spec.team)
    limits = [(one.cpu_limit, one.team) for one in levels if one.cpu_limit is not None]
    if limits:
        limit, owner = min(limits, key=lambda item: item[0])
        if need > limit:
            return f"would exceed quota: {need:g}/{limit:g} CPUs of team {owner}"
    hours = spec.expected_runtime_hours or spec.max_runtime_hours
    budgets = [
        (one.cpu_hours_per_month, one.team) for one in levels if one.cpu_hours_per_month is not None
    ]
    if hours is None or not budgets:
        return None
    budget, owner = min(budgets, key=lambda item: item[0])
    if thousandths * gpu_time.budget_us(hours) <= gpu_time.budget_us(budget) * THOUSAND:
        return None
    field = "expected_runtime_hours" if spec.expected_runtime_hours else "max_runtime_hours"
    return (
        f"would exceed quota: {need * hours:.12g}/{budget:.12g} CPU-hours a month of team {owner} "
        f"({need:g} CPUs for {field} {hours:.12g})"
    )


def waits_for_cpus(state: State, spec: JobSpec) -> str | None:
    """Why an admitted job without GPUs will not start at once, as far as quota knows."""
    for config in line(state.teams, spec.team):
        budget = state.cpu_budgets.get(config.team)
        if budget is not None and budget.exhausted and config.cpu_hours_per_month is not None:
            return (
                f"must wait: team {config.team} has spent {budget.spent_hours:.12g} of its "
                f"{config.cpu_hours_per_month:.12g} CPU-hours of {budget.month}; jobs without GPUs "
                "start again with the next month (UTC), or when cpu_hours_per_month is raised"
            )
    need = spec.resources.cpu_thousandths(spec.resources.ranks)
    used = rolled_up(state.teams, state.cpus)
    for config in line(state.teams, spec.team):
        limit, has = config.cpu_limit, used[config.team]
        if limit is not None and has + need > round(limit * 1000):
            return (
                f"must wait: team {config.team} has {has / 1000:g} of its {limit:g} CPUs for jobs "
                f"without GPUs, and the job needs {need / 1000:g}"
            )
    return None
