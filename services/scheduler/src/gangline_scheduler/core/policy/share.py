"""How many GPUs a team may have now, of which models, along the tree of teams.

A team may always use its limit. It may use `borrow_limit` more as long as no *other* team has a
pending job that would fit into what that team is guaranteed: guarantees come first. Only a job that
could start counts (eligible.py): nodes could hold it, and its team may have it without borrowing.
A team's GPUs count for every team above it, so a job must fit at each level. GPU models that a team
of the line does not allow are left out; a team whose budget of the month is spent starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from gangline_scheduler.core.allocate import next_demand
from gangline_scheduler.core.model import Demand, Job
from gangline_scheduler.core.policy.eligible import fits_empty_cluster
from gangline_scheduler.core.policy.order import examples
from gangline_scheduler.core.state import State
from gangline_schemas.team_limits import TeamConfig
from gangline_schemas.teams import TypeLimit, line, type_limits

STUCK = frozenset({"shape", "gpu_type"})
"""Reasons of jobs whose start cannot be estimated: no nodes that are there could hold them."""


class Ceilings:
    """The most GPUs that each team may have in one pass.

    Cost: the depth of the tree for each question; O(groups of pending jobs), once, and only if a
    team that may borrow is at its limit.
    """

    def __init__(self, state: State) -> None:
        self._at_start = state
        self._fits: dict[str, bool] = {}
        self._types: dict[str, dict[str, tuple[TypeLimit, ...]] | None] = {}
        self._lines: dict[str, tuple[TeamConfig, ...]] = {}
        self._used: dict[str, int] = {}
        self._creditors: dict[str, str | None] = {}

    def within(self, state: State, job: Job, demand: Demand) -> Demand | None:
        """The demand as far as the team may have it on top of what it has in `state`.

        None when it may not have the gang, or not the fewest GPUs that do for an elastic one.
        """
        if self.over_budget(state, job.team) is not None:
            return None
        fewest = demand.fewest or demand.gpus
        room = self.room(state, job.team, demand.gpus)
        if room < fewest:
            return None
        demand = demand.at_most(room)
        allowed = self._allowed(job.team)
        return demand if allowed is None else _of_models(state, demand, allowed, self._there)

    def allows(self, state: State, job: Job) -> bool:
        """Whether the team may take the job's GPUs, the fewest that do, whatever their model."""
        fewest = job.spec.resources.min_gpus or job.gpus
        enough = self.room(state, job.team, fewest) >= fewest
        return enough and self.over_budget(state, job.team) is None

    def room(self, state: State, team: str, wanted: int) -> int:
        """GPUs of the wanted ones that the team may take now; below 0 when it has too many."""
        left = wanted if team in state.teams else -1
        for config in self._line(team):
            here = config.gpu_limit - state.used.get(config.team, 0)
            if here < left and config.borrow_limit and self.creditor(state, config.team) is None:
                here += config.borrow_limit
            left = min(left, here)
        return left

    def ceiling(self, state: State, team: str) -> int:
        """GPUs that the team and those below it may have now; 0 for one that is not known."""
        known = state.teams.get(team)
        if known is None:
            return 0
        if known.config.borrow_limit and self.creditor(state, team) is None:
            return known.config.ceiling
        return known.config.gpu_limit

    def tightest(self, state: State, team: str) -> str:
        """The team of the line that has the least room now; the nearest of equals."""

        def left(name: str) -> int:
            return self.ceiling(state, name) - state.used.get(name, 0)

        return min((config.team for config in self._line(team)), key=left, default=team)

    def over_budget(self, state: State, team: str) -> str | None:
        """The team of the line whose budget of the month is spent; None when there is none."""
        return next(
            (config.team for config in self._line(team) if config.team in state.over_budget), None
        )

    def creditor(self, state: State, team: str) -> str | None:
        """Another team with a job that could start within its guarantee; None: there is none.

        Remembered until the GPUs of any team change.
        """
        if state.used != self._used:
            self._used, self._creditors = dict(state.used), {}
        if team not in self._creditors:
            self._creditors[team] = self._find_creditor(state, team)
        return self._creditors[team]

    def _find_creditor(self, state: State, team: str) -> str | None:
        for other, waiting in self._waiting.items():
            if other in self._names(team) or team in self._names(other):
                continue
            most = state.teams[other].config.gpu_guarantee - state.used.get(other, 0)
            for config in self._line(other) if most > 0 else ():
                most = min(most, config.gpu_limit - state.used.get(config.team, 0))
            fitting = (job for job in waiting if job.fewest <= most) if most > 0 else ()
            if any(self._could_start(state, job) for job in fitting):
                return other
        return None

    def _could_start(self, state: State, job: Job) -> bool:
        """Whether its team may have it and nodes could hold it; its GPUs fit into the limits."""
        if self.over_budget(state, job.team) is not None:
            return False
        demand: Demand | None = next_demand(job, self._at_start).least()
        allowed = self._allowed(job.team)
        if demand is not None and allowed is not None:
            demand = _of_models(state, demand, allowed, self._there)
        if demand is None:
            return False
        if job.job_id not in self._fits:
            self._fits[job.job_id] = fits_empty_cluster(self._at_start, demand)
        return self._fits[job.job_id]

    @cached_property
    def _waiting(self) -> dict[str, list[Job]]:
        """Pending jobs of teams with a guarantee, by team; of equal ones the first."""
        teams = self._at_start.teams
        found: dict[str, list[Job]] = {
            name: [] for name in sorted(teams) if teams[name].config.gpu_guarantee
        }
        for job in examples(self._at_start):
            if job.team in found:
                found[job.team].append(job)
        return found

    @cached_property
    def _there(self) -> Sequence[str]:
        """The GPU models of the nodes that take gangs."""
        return self._at_start.empty.models()

    def _line(self, team: str) -> tuple[TeamConfig, ...]:
        """The team and those above it; the tree stays as it is for the pass."""
        if team not in self._lines:
            self._lines[team] = tuple(one.config for one in line(self._at_start.teams, team))
        return self._lines[team]

    def _names(self, team: str) -> set[str]:
        return {config.team for config in self._line(team)}

    def _allowed(self, team: str) -> dict[str, tuple[TypeLimit, ...]] | None:
        if team not in self._types:
            limits = type_limits({config.team: config for config in self._line(team)}, team)
            self._types[team] = None if limits is None else dict(sorted(limits.items()))
        return self._types[team]


def _of_models(
    state: State,
    demand: Demand,
    allowed: Mapping[str, tuple[TypeLimit, ...]],
    there: Sequence[str],
) -> Demand | None:
    """Only models of which the teams of the line may have so many more.

    A gang that names no model mixes them if the teams may have all of it in each of the models that
    are `there`; else it is of one model.
    """
    fewest = demand.fewest or demand.gpus
    rooms = {
        model: min(_left(state, limit, demand.gpus) for limit in limits)
        for model, limits in allowed.items()
        if not demand.gpu_types or model in demand.gpu_types
    }
    if not demand.gpu_types and there and all(rooms.get(one, 0) >= demand.gpus for one in there):
        return demand
    wanted = demand.gpu_types or tuple(rooms)
    models = tuple(model for model in wanted if rooms.get(model, 0) >= fewest)
    if not models:
        return None
    most = min(rooms[model] for model in models)
    return replace(demand.at_most(most), gpu_types=models)


def _left(state: State, limit: TypeLimit, wanted: int) -> int:
    """GPUs of the wanted ones that its team may take now of what the limit counts."""
    if limit.gpu_limit is None:
        return wanted
    used = sum(state.used_models.get((limit.team, model), 0) for model in limit.models)
    return limit.gpu_limit - used
