"""Monthly budgets: a team that spent its GPU-hours of a UTC month starts no new gangs.

The decisions are made at ticks. The spent time is the time charged in the month plus the use so far
of the gangs that run now, so a long gang spends its budget while it runs. Each change is written
once. Running gangs are not stopped; the scheduler starts no new ones below a team that is out of
budget.

Cost of a tick: nothing without budgets, else the teams times their depth, and the live gangs.
"""

from __future__ import annotations

from datetime import datetime

from gangline_bus.decision import Decision
from gangline_quota.core.state import State
from gangline_schemas import gpu_time
from gangline_schemas.events.quota import TeamBudgetChanged
from gangline_schemas.teams import rolled_up


def flips(state: State, now: datetime) -> list[Decision]:
    """One event for each team whose budget ran out, or opened again, since its last event."""
    watched = [
        name
        for name, config in state.teams.items()
        if config.gpu_hours_per_month is not None or _exhausted(state, name)
    ]
    if not watched:
        return []
    month, spent = gpu_time.month_of(now), spent_us(state, now)
    found = []
    for name in sorted(watched):
        hours = state.teams[name].gpu_hours_per_month
        exhausted = hours is not None and spent[name] >= gpu_time.budget_us(hours)
        known = state.budgets.get(name)
        if exhausted == _exhausted(state, name) and not (
            exhausted and known is not None and known.month != month
        ):
            continue
        event = TeamBudgetChanged(
            team=name,
            month=month,
            exhausted=exhausted,
            spent_gpu_hours=gpu_time.hours(spent[name]),
            gpu_hours_per_month=hours,
        )
        found.append(Decision(name, event))
    return found


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


def _exhausted(state: State, team: str) -> bool:
    known = state.budgets.get(team)
    return known is not None and known.exhausted
