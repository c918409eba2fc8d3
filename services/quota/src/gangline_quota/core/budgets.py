"""Monthly budgets: a team that spent its GPU-hours of a UTC month starts no new gangs.

CPU-hours of jobs without GPUs are a budget of their own, for such jobs.

The decisions are made at ticks. The spent time is the time charged in the month plus the use so far
of the gangs that run now, so a long gang spends its budget while it runs. Each change is written
once. Running gangs are not stopped; the scheduler starts no new ones below a team that is out of
budget.

Cost of a tick: nothing without budgets, else the teams times their depth, and the live gangs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from gangline_bus.decision import Decision
from gangline_quota.core.ledger import THOUSAND
from gangline_quota.core.state import Budget, State
from gangline_schemas import gpu_time
from gangline_schemas.events.quota import TeamBudgetChanged, TeamCpuBudgetChanged
from gangline_schemas.team_limits import TeamConfig
from gangline_schemas.teams import rolled_up


def flips(state: State, now: datetime) -> list[Decision]:
    """One event for each team whose budget ran out, or opened again, since its last event."""
    return [*_gpu_flips(state, now), *_cpu_flips(state, now)]


def _gpu_flips(state: State, now: datetime) -> Iterator[Decision]:
    watched = _watched(state, state.budgets, lambda config: config.gpu_hours_per_month)
    if not watched:
        return
    month, spent = gpu_time.month_of(now), spent_us(state, now)
    for name in watched:
        hours = state.teams[name].gpu_hours_per_month
        exhausted = hours is not None and spent[name] >= gpu_time.budget_us(hours)
        if _is_new(state.budgets.get(name), month, exhausted=exhausted):
            event = TeamBudgetChanged(
                team=name,
                month=month,
                exhausted=exhausted,
                spent_gpu_hours=gpu_time.hours(spent[name]),
                gpu_hours_per_month=hours,
            )
            yield Decision(name, event)


def _cpu_flips(state: State, now: datetime) -> Iterator[Decision]:
    watched = _watched(state, state.cpu_budgets, lambda config: config.cpu_hours_per_month)
    if not watched:
        return
    month, spent = gpu_time.month_of(now), spent_cpu_us(state, now)
    for name in watched:
        config = state.teams[name]
        exhausted = out_of_cpu_budget(config, spent[name])
        if _is_new(state.cpu_budgets.get(name), month, exhausted=exhausted):
            event = TeamCpuBudgetChanged(
                team=name,
                month=month,
                exhausted=exhausted,
                spent_cpu_hours=gpu_time.hours(spent[name]) / THOUSAND,
                cpu_hours_per_month=config.cpu_hours_per_month,
            )
            yield Decision(name, event)


def out_of_cpu_budget(config: TeamConfig, spent: int) -> bool:
    """Whether so many thousandths of CPU-microseconds are its budget of a month, or more."""
    hours = config.cpu_hours_per_month
    return hours is not None and spent >= gpu_time.budget_us(hours) * THOUSAND


def _watched(
    state: State, known: Mapping[str, Budget], hours: Callable[[TeamConfig], float | None]
) -> list[str]:
    return sorted(
        name
        for name, config in state.teams.items()
        if hours(config) is not None or (name in known and known[name].exhausted)
    )


def _is_new(known: Budget | None, month: str, *, exhausted: bool) -> bool:
    """Whether that differs from the last event: a month that is spent again is new."""
    before = known is not None and known.exhausted
    return exhausted != before or (exhausted and known is not None and known.month != month)


def spent_us(state: State, now: datetime) -> dict[str, int]:
    """GPU-microseconds of this month by team, with the teams below it and with live gangs."""
    return rolled_up(state.teams, own_spent_us(state, now))


def own_spent_us(state: State, now: datetime) -> dict[str, int]:
    """The same by team alone, without the teams below it."""
    month = gpu_time.month_of(now)
    own = {name: state.spent_us.get((name, month), 0) for name in state.teams}
    for meter in state.meters.values():
        own[meter.team] += gpu_time.in_month(meter.gpus, meter.allocated_at, now)
    return own


def spent_cpu_us(state: State, now: datetime) -> dict[str, int]:
    """Thousandths of CPU-microseconds of this month by team, with the teams below and live jobs."""
    month = gpu_time.month_of(now)
    own = {name: state.spent_cpu_us.get((name, month), 0) for name in state.teams}
    for meter in state.meters.values():
        own[meter.team] += gpu_time.in_month(meter.cpus, meter.allocated_at, now)
    return rolled_up(state.teams, own)
