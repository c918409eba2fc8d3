"""Teams, the parts of the platform, and the settings that decisions follow."""

from __future__ import annotations

from datetime import datetime

from gangline_scheduler.core import usage
from gangline_scheduler.core.evolve.registry import fold
from gangline_scheduler.core.indexes import reindex
from gangline_scheduler.core.model import Part
from gangline_scheduler.core.state import State
from gangline_scheduler.core.team_model import Team
from gangline_schemas.events.policy import PolicyConfigured
from gangline_schemas.events.scheduling import (
    FeatureEnabled,
    PartNoted,
    TeamBudgetNoted,
    TeamCpuBudgetNoted,
    TeamNoted,
)


@fold.on(TeamNoted)
def _(state: State, event: TeamNoted, at: datetime) -> None:
    name, known = event.config.team, state.teams.get(event.config.team)
    state.teams[name] = Team(event.config)
    if known is None or known.config.parent != event.config.parent:
        # It took its gangs along: those above it may have more than they may now.
        usage.move(state, at)
        changed = [*state.teams]
    else:
        changed = [name]
    for each in changed:
        config, used = state.teams[each].config, state.used.get(each, 0)
        state.teams[each] = Team(config, used if used > config.ceiling else 0)


@fold.on(TeamBudgetNoted)
def _(state: State, event: TeamBudgetNoted, _at: datetime) -> None:
    if event.exhausted:
        state.over_budget[event.team] = event.month
    else:
        state.over_budget.pop(event.team, None)


@fold.on(TeamCpuBudgetNoted)
def _(state: State, event: TeamCpuBudgetNoted, _at: datetime) -> None:
    if event.exhausted:
        state.over_cpu_budget[event.team] = event.month
    else:
        state.over_cpu_budget.pop(event.team, None)


@fold.on(PartNoted)
def _(state: State, event: PartNoted, at: datetime) -> None:
    key = (event.part, event.instance)
    if event.release is None:
        state.parts.pop(key, None)
    else:
        state.parts[key] = Part(event.release, at)


@fold.on(FeatureEnabled)
def _(state: State, event: FeatureEnabled, at: datetime) -> None:
    state.features[event.feature] = at


@fold.on(PolicyConfigured)
def _(state: State, event: PolicyConfigured, _at: datetime) -> None:
    state.policy = event
    reindex(state)
