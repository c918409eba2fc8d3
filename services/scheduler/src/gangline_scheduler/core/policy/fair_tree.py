"""Weighted dominant-resource fair share over the tree of teams, with usage that decays.

At each level of the tree the team goes first that has the least of what it is due:

    (dominant share used now + dominant share used on average) / weight

The dominant share is the largest of a team's parts of the cluster's GPUs, CPUs and memory. The
average weighs the past with a half-life of 7 days (usage.py), so a team that used little lately
comes before one that used much, and gives way again as it starts jobs. A team of
weight 0 that has its guarantee comes after all others. Within a team: restarts,
then priority, then waiting time. Source: Ghodsi et al., "Dominant Resource Fairness" (NSDI
2011); the decay is that of Slurm's multifactor priority.

Cost: O(log groups) for each job within its team, and the siblings at each level of the tree.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

from gangline_scheduler.core import usage
from gangline_scheduler.core.model import Job, demand_of
from gangline_scheduler.core.policy.order import Group
from gangline_scheduler.core.queue import Slot
from gangline_scheduler.core.state import State
from gangline_scheduler.core.team_model import Team, Usage

Total = tuple[float, float, float]


class FairTree:
    """The order that is named `drf` in the configuration."""

    name = "drf"
    strict = False

    def slot(self, job: Job) -> Slot:
        """Groups by team, priority and shape; within one, the longest wait first."""
        group = Group(job.team, job.priority, job.restarting, demand_of(job.spec), job.avoid)
        return Slot(group, (job.waiting_since, job.submitted_at, job.job_id))

    def walk(self, current: Callable[[], State], now: datetime) -> TreeWalk:
        """From the root to the team that is due most, for each job again."""
        return TreeWalk(current, now)

    def rank(self, job: Job, state: State, now: datetime) -> tuple[Any, ...]:
        """The shares along the line from the root, then the job's place in its team."""
        total = total_of(state)
        line = reversed([*usage.line_of(state.teams, job.team)])
        return (*(due(state, name, total, now) for name in line), *own_place(job))

    def standing(
        self,
        job: Job,
        state: State,  # noqa: ARG002 - the port's
        now: datetime,  # noqa: ARG002
        *,
        more: int = 0,  # noqa: ARG002
    ) -> float:
        """Its priority: shares say which job starts next, not which stops."""
        return float(job.priority)

    def worth(self, job: Job, state: State, now: datetime) -> float:  # noqa: ARG002 - port's
        """Its priority."""
        return float(job.priority)

    def charge(self, team: Team | None, allocated: int) -> float:  # noqa: ARG002 - the port's
        """Shares do not count."""
        return 0.0

    def patience(self, job: Job, state: State) -> timedelta:  # noqa: ARG002 - the port's
        """No job is passed on purpose."""
        return timedelta(0)


def own_place(job: Job) -> tuple[Any, ...]:
    """A job's place within its team."""
    waits = (job.waiting_since, job.submitted_at, job.job_id)
    return (not job.restarting, job.priority, *waits)


def due(state: State, team: str, total: Total, now: datetime) -> float:
    """How much of what it is due the team has: lowest first."""
    known = state.usage.get(team, Usage())
    config = state.teams[team].config if team in state.teams else None
    average = usage.average(known, now)
    present = (max(0.0, rate) / all_ for rate, all_ in zip(known.rate, total, strict=True))
    past = (value / all_ for value, all_ in zip(average, total, strict=True))
    amount = max(present) + max(past)
    if config is None or config.weight:
        return amount / (config.weight if config is not None else 1.0)
    owed = state.used.get(team, 0) < config.gpu_guarantee
    return amount if owed else inf


def total_of(state: State) -> Total:
    """GPUs, CPUs and GB of the nodes that take gangs."""
    cpus, memory_gb = state.empty.resources
    return max(1.0, float(state.empty.total())), max(1.0, cpus), max(1.0, memory_gb)


class TreeWalk:
    """A heap of group heads for each team, below a tree of the teams that have pending jobs."""

    def __init__(self, current: Callable[[], State], now: datetime) -> None:
        self._current, self._now = current, now
        state = current()
        self._total = total_of(state)
        self._groups = list(state.queue.groups().values())
        self._heads: dict[str, list[tuple[Any, ...]]] = {}
        for number in range(len(self._groups)):
            job = self._job(number, 0)
            self._heads.setdefault(job.team, []).append((own_place(job), number, 0))
        self._below: dict[str | None, set[str]] = {None: set()}
        for team, heads in self._heads.items():
            heapify(heads)
            self._hang(state, team)
        self._given: tuple[str, int, int] | None = None

    def next(self) -> Job | None:
        """The next pending job; None at the end."""
        if self._given is not None:
            (team, number, at), self._given = self._given, None
            if at + 1 < len(self._groups[number]):
                place = own_place(self._job(number, at + 1))
                heappush(self._heads[team], (place, number, at + 1))
        chosen = self._chosen(None)
        if chosen is None:
            return None
        _, number, at = heappop(self._heads[chosen])
        self._given = (chosen, number, at)
        return self._job(number, at)

    def drop(self) -> None:
        """Leave out the group of the job given last."""
        if self._given is not None:
            team, number, _ = self._given
            self._given = (team, number, len(self._groups[number]))

    def _hang(self, state: State, team: str) -> None:
        """Put a team with pending jobs, and those above it, into the tree."""
        child = team
        for name in usage.line_of(state.teams, team):
            self._below.setdefault(name, set())
            if name != team:
                self._below[name].add(child)
            child = name
        self._below[None].add(child)

    def _chosen(self, above: str | None) -> str | None:
        """The team below this one whose turn it is; itself, if it has jobs and no child has."""
        state = self._current()
        children = self._below.get(above, ())
        ranked = [(due(state, name, self._total, self._now), name) for name in children]
        for _, name in sorted(ranked):
            found = self._chosen(name)
            if found is not None:
                return found
        return above if above is not None and self._heads.get(above) else None

    def _job(self, number: int, at: int) -> Job:
        return self._current().jobs[self._groups[number][at][-1]]
