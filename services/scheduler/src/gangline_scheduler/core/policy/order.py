"""Which pending job comes first.

The platform's fair-share order is the default:

    priority + max(0, (share - 1) * 50) - min(20, wait_minutes / 10), lowest first

`share` is the GPUs that the team has over those it is guaranteed, so a team above its guarantee
falls back; waiting brings a job forward by up to 20. A team without a guarantee is measured by
its limit: a file that only sets limits gives the plain order by priority and waiting time.
Ties go to the longer wait, then to the earlier submission, then to the smaller job id.

A job that is restarted after a failure goes before all others. It starts again on the GPUs that its
attempt gave back, and a failure costs minutes, not a place in the queue.

Cost of one pass: jobs of one group (team, priority, shape) are kept in order (queue.py), and
within a team the order does not depend on the share. So only the heads of groups are compared:
O(log groups + log teams) a job, with the shares as they are after the allocations so far.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, Protocol

from gangline_scheduler.core.model import Avoid, Demand, Job, demand_of
from gangline_scheduler.core.queue import Slot
from gangline_scheduler.core.state import State
from gangline_scheduler.core.team_model import Team

SHARE_WEIGHT = 50.0
MAX_WAIT_BONUS = 20.0
MINUTES_PER_POINT = 10.0

Rank = tuple[bool, float, datetime, datetime, str]


class Walk(Protocol):
    """One walk through the queue, from the first job on."""

    def next(self) -> Job | None:
        """The next pending job, by the state as it is now; None at the end."""

    def drop(self) -> None:
        """The job given last does not fit, and so don't those like it: leave them out."""


class Order(Protocol):
    """An order of the queue.

    `strict`: the first job that does not fit holds up all behind it.
    """

    name: str
    strict: bool

    def slot(self, job: Job) -> Slot:
        """The job's group and its place within it; the same for as long as the job's values."""

    def walk(self, current: Callable[[], State], now: datetime) -> Walk:
        """A walk through the jobs that are pending now; `current` gives the state at each step."""

    def rank(self, job: Job, state: State, now: datetime) -> tuple[Any, ...]:
        """A job's place among all jobs, running ones too: lowest first."""

    def standing(self, job: Job, state: State, now: datetime, *, more: int = 0) -> float:
        """Its effective priority without what waiting gives: lowest is best.

        A job may be stopped only for one that stands better with its GPUs: `more` are what its
        team will have besides those it has in `state`. Waiting does not count, or jobs of equal
        priority would stop each other in turn.
        """

    def worth(self, job: Job, state: State, now: datetime) -> float:
        """How a job that runs stands in its team: lowest is best (potential.py)."""

    def charge(self, team: Team | None, allocated: int) -> float:
        """The points that a job loses as its team has so many GPUs; never less for more."""

    def patience(self, job: Job, state: State) -> timedelta:
        """How long others may pass a job of this order before GPUs are reserved for it."""


def share(team: Team | None, used: int) -> float:
    """GPUs allocated over GPUs owed; see the module for a team without a guarantee."""
    if team is None:
        return float(used)
    base = team.config.gpu_guarantee or team.config.gpu_limit or 1
    return used / base


def share_penalty(team: Team | None, used: int) -> float:
    """By how much a team's jobs fall back for what the team already has."""
    return max(0.0, (share(team, used) - 1.0) * SHARE_WEIGHT)


def wait_bonus(since: datetime, now: datetime) -> float:
    """By how much waiting since then brings a job forward."""
    waited_minutes = max(0.0, (now - since).total_seconds() / 60.0)
    return min(MAX_WAIT_BONUS, waited_minutes / MINUTES_PER_POINT)


def own_rank(job: Job, now: datetime) -> Rank:
    """A job's place within its team: the formula without the share."""
    value = job.priority - wait_bonus(job.waiting_since, now)
    return not job.restarting, value, job.waiting_since, job.submitted_at, job.job_id


class Group(NamedTuple):
    """Jobs that differ only in how long they wait."""

    team: str
    priority: int
    restarting: bool
    demand: Demand
    avoid: tuple[Avoid, ...]


def examples(state: State) -> Iterator[Job]:
    """The pending jobs, of a group of equal ones only the first."""
    for group, places in state.queue.groups().items():
        for place in places[:1] if isinstance(group, Group) else places:
            yield state.jobs[place[-1]]


class FairShare:
    """The platform's formula."""

    name = "fair"
    strict = False

    def slot(self, job: Job) -> Slot:
        """Groups by team, priority and shape; within one, the longest wait first."""
        group = Group(job.team, job.priority, job.restarting, demand_of(job.spec), job.avoid)
        return Slot(group, (job.waiting_since, job.submitted_at, job.job_id))

    def walk(self, current: Callable[[], State], now: datetime) -> Walk:
        """Lowest value first; the shares count as they are when a job is given."""
        return _FairWalk(current, now, self.penalty)

    def rank(self, job: Job, state: State, now: datetime) -> Rank:
        """The whole formula. A running job has stopped waiting, so it has no bonus."""
        fresh, value, *rest = own_rank(job, job.waiting_since if job.gang is not None else now)
        return (fresh, value + self.penalty(state, job.team), *rest)  # type: ignore[return-value]

    def standing(
        self,
        job: Job,
        state: State,
        now: datetime,  # noqa: ARG002 - the port's
        *,
        more: int = 0,
    ) -> float:
        """Priority and share."""
        return job.priority + self.penalty(state, job.team, more)

    def worth(self, job: Job, state: State, now: datetime) -> float:  # noqa: ARG002 - port's
        """Its priority."""
        return float(job.priority)

    def charge(self, team: Team | None, allocated: int) -> float:
        """The points by which the team is above its share."""
        return share_penalty(team, allocated)

    def patience(self, job: Job, state: State) -> timedelta:  # noqa: ARG002 - the port's
        """No job is passed on purpose."""
        return timedelta(0)

    def penalty(self, state: State, team: str, more: int = 0) -> float:
        """By how much the team's jobs fall back now, or with so many GPUs more."""
        return share_penalty(state.teams.get(team), state.used.get(team, 0) + more)


class _FairWalk:
    """A heap of group heads for each team, and a heap of teams by their best head."""

    def __init__(
        self,
        current: Callable[[], State],
        now: datetime,
        penalty: Callable[[State, str], float],
    ) -> None:
        self._current, self._now, self._penalty = current, now, penalty
        self._groups: list[tuple[Any, list[tuple[Any, ...]]]] = [*current().queue.groups().items()]
        self._heads: dict[str, list[tuple[Rank, int, int]]] = {}
        for number, (group, _) in enumerate(self._groups):
            self._heads.setdefault(group.team, []).append(self._head(number, 0))
        for heads in self._heads.values():
            heapify(heads)
        self._teams = [self._team_head(team) for team in self._heads]
        heapify(self._teams)
        self._given: tuple[str, int, int] | None = None

    def next(self) -> Job | None:
        self._return()
        while self._teams:
            known, team = heappop(self._teams)
            now = self._team_head(team)
            if now[0] > known:
                heappush(self._teams, now)
                continue
            _, number, at = heappop(self._heads[team])
            self._given = (team, number, at)
            return self._current().jobs[self._groups[number][1][at][-1]]
        return None

    def drop(self) -> None:
        if self._given is not None:
            team, number, _ = self._given
            self._given = (team, number, len(self._groups[number][1]))

    def _return(self) -> None:
        """Put what follows the last job, and its team, back into the heaps."""
        if self._given is None:
            return
        (team, number, at), self._given = self._given, None
        if at + 1 < len(self._groups[number][1]):
            heappush(self._heads[team], self._head(number, at + 1))
        if self._heads[team]:
            heappush(self._teams, self._team_head(team))

    def _head(self, number: int, at: int) -> tuple[Rank, int, int]:
        """The rank is `own_rank`'s; group and place hold all that it takes, without the job."""
        group, places = self._groups[number]
        since, submitted_at, job_id = places[at]
        value = group.priority - wait_bonus(since, self._now)
        return (not group.restarting, value, since, submitted_at, job_id), number, at

    def _team_head(self, team: str) -> tuple[Rank, str]:
        fresh, value, *rest = self._heads[team][0][0]
        penalty = self._penalty(self._current(), team)
        return (fresh, value + penalty, *rest), team  # type: ignore[return-value]


def in_order(order: Order, current: Callable[[], State], now: datetime) -> Iterator[Job]:
    """All jobs of a walk."""
    walk = order.walk(current, now)
    while (job := walk.next()) is not None:
        yield job


class Listed:
    """An order in which a job's place never depends on the others: one sorted list.

    `place` gives a job's place; its id is added, so that places are unique.
    """

    def __init__(self, name: str, place: Callable[[Job], tuple[Any, ...]], *, strict: bool) -> None:
        self.name = name
        self.strict = strict
        self._place = place

    def slot(self, job: Job) -> Slot:
        """All in one group."""
        return Slot(None, (*self._place(job), job.job_id))

    def walk(self, current: Callable[[], State], now: datetime) -> Walk:  # noqa: ARG002 - port's
        """As the list stands."""
        groups: dict[Hashable, list[tuple[Any, ...]]] = current().queue.groups()
        return _ListWalk(current, groups.get(None, []))

    def rank(self, job: Job, state: State, now: datetime) -> tuple[Any, ...]:  # noqa: ARG002
        """The same place, whether it runs or waits."""
        return (*self._place(job), job.job_id)

    def standing(
        self,
        job: Job,  # noqa: ARG002 - the port's
        state: State,  # noqa: ARG002
        now: datetime,  # noqa: ARG002
        *,
        more: int = 0,  # noqa: ARG002
    ) -> float:
        """All stand alike: such an order stops no gang for another job's priority."""
        return 0.0

    def worth(self, job: Job, state: State, now: datetime) -> float:  # noqa: ARG002 - port's
        """All are worth the same."""
        return 0.0

    def charge(self, team: Team | None, allocated: int) -> float:  # noqa: ARG002 - the port's
        """Shares do not count."""
        return 0.0

    def patience(self, job: Job, state: State) -> timedelta:  # noqa: ARG002 - the port's
        """No job is passed on purpose."""
        return timedelta(0)


class _ListWalk:
    def __init__(self, current: Callable[[], State], places: list[tuple[Any, ...]]) -> None:
        self._current, self._places, self._at = current, places, 0

    def next(self) -> Job | None:
        if self._at == len(self._places):
            return None
        self._at += 1
        return self._current().jobs[self._places[self._at - 1][-1]]

    def drop(self) -> None:
        """Jobs behind it may be smaller."""


def by_submission(job: Job) -> tuple[Any, ...]:
    """First come, first served."""
    return (job.submitted_at,)


def by_expected_runtime(job: Job) -> tuple[Any, ...]:
    """The shortest first, by what was said at submission; who said nothing comes last."""
    expected = job.spec.expected_runtime_hours or job.spec.max_runtime_hours
    return (expected is None, expected or 0.0, job.submitted_at)


FIFO = Listed("fifo", by_submission, strict=True)
SJF = Listed("sjf", by_expected_runtime, strict=True)
