"""Running gangs that may be stopped for a waiting one, and the costs of that.

A gang may be stopped if its job said `preemptible`, all its ranks run, and nothing stops it yet.
This attempt must have run for `min_runtime`, and the job was stopped for others fewer than
`max_preemptions` times. It must not be nearly done: its time left is more than `nearly_done`, and
more than the stop and the restart would take. Stopping it costs, in GPU-seconds,

    GPUs x (time to save + work since its last committed checkpoint + time to start again)

and it delays the start of the waiting job by its `stop_grace_seconds` less the time to save. Of
gangs that cost the same, that of the worst rank is stopped, then the one that started last. Teams'
guarantees forbid some stops: `Guarantees`. Cost: O(running gangs), once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Any

from gangline_scheduler.core import usage
from gangline_scheduler.core.model import Job, Member, NodeAllocation
from gangline_scheduler.core.policy.config import Policy, Preemption
from gangline_scheduler.core.policy.estimate import Estimates
from gangline_scheduler.core.state import State
from gangline_scheduler.core.values import replace
from gangline_schemas.clocks import lasts
from gangline_schemas.job import JobState


@dataclass(frozen=True, slots=True)
class Victim:
    """A gang that may be stopped or shrink: the cost in GPU-seconds, and how its job stands.

    `gpus`: those that it gives back. `left`: those that it keeps if it shrinks (steps.py); 0: it is
    stopped whole. `given`: those that it gives by node, once that is known. `delay_s`: how much
    longer than other gangs it may take to leave. `returning`: how its job stands once it waits, if
    it is urgent. `line`: its team and those above it. `turn`: of those that cost the same, which
    comes first.
    """

    job: Job
    gpus: int
    cost: float
    standing: float = 0.0
    delay_s: float = 0.0
    returning: float = 0.0
    line: tuple[str, ...] = ()
    turn: int = 0
    left: int = 0
    given: tuple[tuple[str, NodeAllocation], ...] = ()

    @property
    def cheapness(self) -> tuple[float, int]:
        """Its cost for each GPU; lowest first."""
        return self.cost / self.gpus, self.turn


def stoppable(
    state: State, later: State, now: datetime, policy: Policy, estimates: Estimates
) -> tuple[Victim, ...]:
    """Every gang that may be stopped now, the cheapest for each GPU first.

    `later`: what teams will use, by which jobs stand.
    """
    settings = policy.preemption
    shortest_s = max(_pause_s(settings), settings.nearly_done.total_seconds())
    found = [
        job
        for job in (state.jobs[job_id] for job_id in state.live)
        if _may_be_stopped(job, now, settings) and estimates.left_s(job) >= shortest_s
    ]
    turns = {job.job_id: turn for turn, job in enumerate(in_turn(found, later, now, policy))}
    victims = (victim_of(job, state, later, now, policy, turn=turns[job.job_id]) for job in found)
    return tuple(sorted(victims, key=lambda victim: victim.cheapness))


def victim_of(
    job: Job, state: State, later: State, now: datetime, policy: Policy, *, turn: int = 0
) -> Victim:
    """The cost and the gain of stopping this gang."""
    settings, order = policy.preemption, policy.order
    urgent = job.priority < settings.preempt_below
    return Victim(
        job,
        job.allocated_gpus,
        cost_gpu_s(job, now, settings),
        order.standing(job, later, now),
        delay_s(job, settings),
        order.standing(replace(job, gang=None), later, now) if urgent else 0.0,
        tuple(usage.line_of(state.teams, job.team)),
        turn,
    )


def in_turn(jobs: Iterable[Job], later: State, now: datetime, policy: Policy) -> list[Job]:
    """Of the worst rank first, then who started last, then by where they lie; never by id."""

    def rank(job: Job) -> tuple[Any, ...]:
        *place, _ = policy.order.rank(job, later, now)
        started = job.gang.allocated_at if job.gang is not None else now
        return (*place, started)

    by_place = sorted(jobs, key=_place)
    return sorted(by_place, key=rank, reverse=True)


def _place(job: Job) -> list[tuple[str, int]]:
    return [(part.node_id, part.gpus[0]) for part in job.gang.nodes] if job.gang else []


def steady(victims: Sequence[Victim], settings: Preemption) -> tuple[Victim, ...]:
    """Those that could not have others of them stopped in turn, once they wait.

    An urgent job could, if those that stand worse have as many GPUs as it.
    """
    if settings.preempt == "off":
        return tuple(victims)
    worst_first = sorted(victims, key=lambda victim: -victim.standing)
    most: dict[str, int] = {}
    more: list[int] = []
    for victim in worst_first:
        before = most.get(victim.job.job_id, 0)
        most[victim.job.job_id] = max(before, victim.gpus)
        more.append(most[victim.job.job_id] - before)
    levels = [-victim.standing for victim in worst_first]
    allocated = [0, *accumulate(more)]
    return tuple(
        victim
        for victim in victims
        if victim.left
        or victim.job.priority >= settings.preempt_below
        or allocated[bisect_left(levels, -victim.returning)] < victim.gpus
    )


def delay_s(job: Job, settings: Preemption) -> float:
    """By how much its grace to stop is longer than what a gang is taken to need to save."""
    return max(0.0, job.spec.stop_grace_seconds - settings.checkpoint.total_seconds())


def cost_gpu_s(job: Job, now: datetime, settings: Preemption) -> float:
    """The cost of stopping its gang now, in GPU-seconds; 0 without a gang.

    One that starts from scratch each time loses all work of its attempt.
    """
    if job.gang is None:
        return 0.0
    saved_at = job.gang.allocated_at
    from_scratch = job.spec.checkpoint.resume == "never" and not job.restored
    if job.saved_at is not None and not from_scratch:
        saved_at = max(saved_at, job.saved_at)
    lost_s = max(0.0, (now - saved_at).total_seconds())
    return job.allocated_gpus * (_pause_s(settings) + lost_s)


def stoppable_from(job: Job, now: datetime, settings: Preemption) -> datetime | None:
    """When its gang may be stopped, however long it still runs; None: that is not foreseeable."""
    gang = job.gang
    if gang is None or gang.stop is not None or not job.spec.preemptible:
        return None
    if not settings.may_stop_again(job.preemptions, job.ran_by(now)):
        return None
    if not lasts(gang.allocated_at, now, settings.min_runtime):
        return now
    return gang.allocated_at + settings.min_runtime


def _may_be_stopped(job: Job, now: datetime, settings: Preemption) -> bool:
    """Whether it may, however long it still runs."""
    gang = job.gang
    if gang is None or job.state is not JobState.RUNNING:
        return False
    if stoppable_from(job, now, settings) != now:
        return False
    return gang.members.count(Member.STARTED) == len(gang.members)


def _pause_s(settings: Preemption) -> float:
    return (settings.checkpoint + settings.restart).total_seconds()


class Guarantees:
    """GPUs that each team may still lose to others: no team is taken below its guarantee.

    `inside`: teams for whose sake it happens; they, and what is below them, are not asked.
    A team's GPUs are those that it and the teams below it have, less those of gangs that stop.
    `whole`: a gang may be stopped if its team is above its guarantee, even if it would be below it
    then: part of that gang was borrowed, and a gang is stopped whole.
    """

    def __init__(
        self,
        state: State,
        leaving: Mapping[str, int],
        inside: Iterable[str],
        *,
        whole: bool = False,
    ) -> None:
        self._state, self._whole = state, whole
        self._inside = frozenset(inside)
        self._lines: dict[str, tuple[str, ...]] = {}
        self._spare = {
            name: state.used.get(name, 0) - leaving.get(name, 0) - team.config.gpu_guarantee
            for name, team in state.teams.items()
            if team.config.gpu_guarantee and name not in self._inside
        }

    def guarantors(self, team: str) -> tuple[str, ...]:
        """The teams with a guarantee from which GPUs of this team would be taken."""
        if team not in self._lines:
            line = usage.line_of(self._state.teams, team)
            self._lines[team] = tuple(name for name in line if name in self._spare)
        return self._lines[team]

    def most(self, job: Job, taken: Mapping[str, int]) -> int:
        """GPUs of its gang that it may lose, after so many GPUs of teams were taken."""
        spare = (self._spare[name] - taken.get(name, 0) for name in self.guarantors(job.team))
        return max(0, min(spare, default=job.allocated_gpus))

    def allow(self, victim: Victim, taken: Mapping[str, int]) -> bool:
        """Whether it may be stopped, after so many GPUs of teams were taken."""
        needed = 1 if self._whole and not victim.left else victim.gpus
        return needed <= self.most(victim.job, taken)

    def take(self, job: Job, gpus: int, taken: dict[str, int]) -> None:
        """Count so many GPUs of its gang into `taken`; below 0: count them no longer."""
        for name in self.guarantors(job.team):
            taken[name] = taken.get(name, 0) + gpus


def owed(
    state: State, promised: Mapping[str, int], job: Job, *, more: int | None = None
) -> str | None:
    """The nearest team of the job's line into whose guarantee it fits; None: there is none.

    `promised`: GPUs of each team that are reserved for its jobs that wait. `more`: what a gang that
    runs would have more; None: the job waits.
    """
    wanted = job.fewest if more is None else more
    for name in usage.line_of(state.teams, job.team):
        allocated = state.used.get(name, 0) + promised.get(name, 0)
        if allocated + wanted <= state.teams[name].config.gpu_guarantee:
            return name
    return None


def leaving(state: State) -> dict[str, int]:
    """GPUs of each team, with those below it, whose gangs stop and resume nowhere else."""
    found: dict[str, int] = {}
    for job_id in state.live:
        job = state.jobs[job_id]
        if job.gang is not None and job.gang.leaving and job_id not in state.reserved:
            for name in usage.line_of(state.teams, job.team):
                found[name] = found.get(name, 0) + job.allocated_gpus
    return found


def promised(state: State, *, but: str = "") -> dict[str, int]:
    """GPUs of each team, with those below it, reserved for its jobs that wait `but` one."""
    found: dict[str, int] = {}
    for job_id, reserved in state.reserved.items():
        job = state.jobs.get(job_id)
        if job is not None and job.gang is None and job_id != but:
            for name in usage.line_of(state.teams, job.team):
                found[name] = found.get(name, 0) + sum(gpus for _, gpus in reserved.nodes)
    return found


def without(state: State, victims: Iterable[Victim]) -> State:
    """The same state without the GPUs of these. For questions about ceilings."""
    used, models = dict(state.used), dict(state.used_models)
    for victim in victims:
        gang = victim.job.gang
        for name in usage.line_of(state.teams, victim.job.team):
            used[name] = used.get(name, 0) - victim.gpus
            part = victim.gpus / max(1, victim.gpus + victim.left)
            for model, count in gang.models if gang is not None else ():
                models[name, model] = models.get((name, model), 0) - int(part * count)
    return replace(state, used=used, used_models=models)
