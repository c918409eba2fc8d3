"""Proves that stops strictly improve: the measure that each stop lowers, and limits on stops.

The standings of a state: a team's gangs are counted one after the other, and each has a level. The
level is its worth (its priority, for the fair order) plus the points by which its team is above its
share with this gang and those counted before it. An elastic gang counts with its fewest GPUs, and
each GPU above them as a gang. The next one is always the one of the lowest level, of equals the one
that started first. All GPUs of a gang are at its level. The list of the levels of all GPUs, lowest
first, is the potential of preemption: of two states the better one has more GPUs at the lowest
level at which they differ. A start always improves it: a gang counted before the new one still
has its level. A preemption is made only if the list is better with the waiting gang instead of its
victims. So between two events from outside (a job is submitted or ends, a priority, a limit or a
node changes) no standings come back, and no gangs take turns.

A reclaim lowers what teams lack of their guarantees instead: the waiting gang fits into one, and
no team outside its line comes to lack more. A reclaim of the surplus by weight lowers what teams
lack of their parts (parts.py), and raises no lack of a guarantee. A preemption raises neither. So
each stop lowers the first of these three that it changes: what lacks of guarantees, what lacks of
parts, the standings. A stop of gangs of a fixed size changes no part: what a team has and waits
for counts alike.

GPUs that are reserved for a gang count as its own, those of a gang that stops count for no gang.
Cost: O(gangs) once; for each question O(gangs of the teams in it), times their kinds for a team
that is above its share.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import cached_property

from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.order import Order
from gangline_scheduler.core.policy.parts import parts
from gangline_scheduler.core.policy.victims import leaving, owed, promised
from gangline_scheduler.core.state import State
from gangline_scheduler.core.usage import line_of
from gangline_schemas.events.scheduling import GpusReserved

DIGITS = 6
"""Levels that differ by less are one: they are sums of floats."""

Gangs = dict[str, tuple[float, int, int]]
"""By job: its worth, its GPUs, and how many of them it needs at the least."""


class Standings:
    """The levels of one state under one order."""

    def __init__(self, state: State, order: Order, now: datetime) -> None:
        self._state, self._order, self._now = state, order, now
        self._before: dict[str, Counter[float]] = {}

    def improves(self, job: Job, gpus: int, victims: Collection[tuple[Job, int]]) -> bool:
        """Whether the list is better if the job has so many GPUs, and each victim as many as said.

        A victim that is stopped has none.
        """
        changed: Counter[float] = Counter()
        for team in {job.team, *(victim.team for victim, _ in victims)}:
            after = dict(self._gangs.get(team, {}))
            for victim, left in victims:
                gang = after.pop(victim.job_id, None)
                if gang is not None and left:
                    after[victim.job_id] = (gang[0], left, gang[2])
            if team == job.team:
                after[job.job_id] = (
                    self._order.worth(job, self._state, self._now),
                    gpus,
                    job.fewest,
                )
            changed.update(self._levels(team, after))
            changed.subtract(self._levels_now(team))
        first = min((level for level, count in changed.items() if count), default=None)
        return first is not None and changed[first] > 0

    @cached_property
    def _gangs(self) -> dict[str, Gangs]:
        """The gangs of each team: those that have GPUs, and those for which GPUs are reserved."""
        state, found = self._state, dict[str, Gangs]()
        for job_id in [*state.live, *(name for name in state.reserved if name not in state.live)]:
            job = state.jobs.get(job_id)
            if job is None:
                continue
            reserved = state.reserved.get(job_id)
            stays = job.gang is not None and not job.gang.leaving
            waits_for = () if reserved is None else reserved.nodes
            gpus = job.allocated_gpus if stays else sum(n for _, n in waits_for)
            if gpus:
                worth = self._order.worth(job, self._state, self._now)
                found.setdefault(job.team, {})[job_id] = (worth, gpus, job.fewest)
        return found

    def _levels_now(self, team: str) -> Counter[float]:
        if team not in self._before:
            self._before[team] = self._levels(team, self._gangs.get(team, {}))
        return self._before[team]

    def _levels(self, team: str, gangs: Gangs) -> Counter[float]:
        """How many GPUs of the team there are at each level."""
        config, charge = self._state.teams.get(team), self._order.charge
        levels: Counter[float] = Counter()
        if not charge(config, sum(gpus for _, gpus, _ in gangs.values())):
            for worth, gpus, _ in gangs.values():
                levels[round(worth, DIGITS)] += gpus
            return levels
        alike: dict[tuple[float, int], deque[int]] = {}
        for started, (worth, gpus, fewest) in enumerate(gangs.values()):
            whole = min(gpus, fewest)
            alike.setdefault((worth, whole), deque()).append(started)
            if gpus > whole:
                alike.setdefault((worth, 1), deque()).extend([started] * (gpus - whole))
        charged = 0
        while alike:
            level, _, gang = min(
                (round(worth + charge(config, charged + gpus), DIGITS), starts[0], (worth, gpus))
                for (worth, gpus), starts in alike.items()
            )
            alike[gang].popleft()
            if not alike[gang]:
                del alike[gang]
            levels[level] += gang[1]
            charged += gang[1]
        return levels


def not_better(
    state: State,
    reserved: GpusReserved,
    left: Mapping[str, int],
    order: Order,
    now: datetime,
    *,
    whole: bool,
) -> list[str]:
    """Why the stops of this `gpus.reserved` are no improvement; [] when they are.

    `left`: GPUs of victims that shrink. `whole`: a gang that its team borrowed in part may be
    stopped for a job that is owed.
    """
    job = state.jobs[reserved.job_id]
    victims = [(state.jobs[name], left.get(name, 0)) for name in reserved.victims]
    gpus = sum(share.gpus for share in reserved.nodes)
    if reserved.reason not in ("preempt", "reclaim", "surplus"):
        return []
    more = gpus - job.allocated_gpus if job.gang is not None else None
    claims = owed(state, promised(state), job, more=more) is not None
    due = parts(state) if reserved.reason != "reclaim" and not claims else {}
    found = taken_from_guarantees(state, job, victims, due, whole=whole and claims)
    if reserved.reason == "reclaim" and not claims:
        found.append(f"{job.job_id} is owed nothing")
    if reserved.reason == "preempt" and not Standings(state, order, now).improves(
        job, gpus, victims
    ):
        found.append(f"{job.job_id} does not stand better than {', '.join(reserved.victims)}")
    return found


def taken_from_guarantees(
    state: State,
    job: Job,
    victims: Collection[tuple[Job, int]],
    due: Mapping[str, int],
    *,
    whole: bool = False,
) -> list[str]:
    """Teams outside the job's line that would have less than they are guaranteed by these stops.

    `victims`: each with the GPUs that it keeps. `due`: GPUs that teams keep with their parts of the
    surplus (parts.py). `whole`: see `not_better`.
    """
    gone = leaving(state)
    taken: dict[str, list[int]] = {}
    largest: dict[str, int] = {}
    for victim, left in victims:
        gives = victim.allocated_gpus - left
        for name in line_of(state.teams, victim.team):
            taken.setdefault(name, []).append(gives)
            if whole and not left:
                largest[name] = max(gives, largest.get(name, 1))
    for name in line_of(state.teams, job.team):
        taken.pop(name, None)
    found = []
    for name, gpus in sorted(taken.items()):
        guarantee = due.get(name, state.teams[name].config.gpu_guarantee)
        before = state.used.get(name, 0) - gone.get(name, 0)
        last = largest.get(name, 1)
        if guarantee and before - sum(gpus) + last <= guarantee:
            found.append(
                f"{job.job_id} takes {sum(gpus)} GPUs of team {name}, which has {before} and is "
                f"guaranteed or due {guarantee}"
            )
    return found
