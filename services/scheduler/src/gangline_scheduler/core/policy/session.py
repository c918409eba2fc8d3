"""A scheduling session: the facts of one state that all searches for victims share.

GPUs of gangs that stop count as free for a job, since no other gang is stopped for GPUs that are
coming anyway. GPUs that are reserved for others do not count. A team's ceiling counts GPUs that are
reserved for its jobs, and not those that its stopping gangs give back.

Cost: O(running gangs) for the victims, for the ends and for a snapshot, each once and when asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Literal

from gangline_scheduler.core import usage
from gangline_scheduler.core.allocate import need_of, next_demand
from gangline_scheduler.core.model import Demand, Job
from gangline_scheduler.core.policy.cheapest import Accept, Wanted
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.estimate import Estimates
from gangline_scheduler.core.policy.parts import others_keep, parts
from gangline_scheduler.core.policy.placement import Placement
from gangline_scheduler.core.policy.potential import Standings
from gangline_scheduler.core.policy.reservation import Ends, Reservation, reserve
from gangline_scheduler.core.policy.share import Ceilings
from gangline_scheduler.core.policy.statement import Snapshot, Statement
from gangline_scheduler.core.policy.steps import with_shrinks
from gangline_scheduler.core.policy.victim_sets import VictimSet, victim_sets
from gangline_scheduler.core.policy.victims import (
    Guarantees,
    Victim,
    leaving,
    owed,
    promised,
    steady,
    stoppable,
    without,
)
from gangline_scheduler.core.state import State

MOST_CHECKS = 32
"""How often it is looked whether so many of a team's own gangs are enough for its ceiling."""


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """Stops for a job: the victims and the job's placement then; cost and value in GPU-seconds.

    `moves`: the new placements of victims that resume at once.
    """

    job: Job
    reason: Literal["preempt", "reclaim", "surplus", "defragment"]
    victim_set: VictimSet
    value: float
    moves: tuple[tuple[Victim, Placement], ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """The demand of a job that does not fit, and GPUs that its team's own gangs must give for it.

    `demand` is the fewest GPUs that do. `own` is not empty if its team has too many GPUs: by
    `short` in the team `above` or below it.
    """

    job: Job
    demand: Demand
    snapshot: Snapshot
    own: tuple[Victim, ...] = ()
    short: int = 0
    above: str = ""

    def wanted(
        self,
        guarantees: Guarantees,
        enough: Accept = lambda _: True,
        improves: Accept = lambda _: True,
    ) -> Wanted:
        """The needs of a set of victims."""
        return Wanted(self.job, self.demand, guarantees, self.short, self.above, enough, improves)


class Session:
    """See the module. `made`: what is reserved for whom."""

    def __init__(
        self, state: State, now: datetime, policy: Policy, made: Sequence[Reservation] = ()
    ) -> None:
        self.state, self.now, self.policy = state, now, policy
        self.ceilings = Ceilings(state)
        self.estimates = Estimates(state, now, policy.default_runtime.total_seconds())
        self._made = made
        self._questions: dict[str, Question | None] = {}
        self._sooner_s: dict[str, float] = {}

    @cached_property
    def victims(self) -> tuple[Victim, ...]:
        """Every gang that may be stopped, the cheapest for each GPU first."""
        return stoppable(self.state, self.later, self.now, self.policy, self.estimates)

    @cached_property
    def steps(self) -> tuple[Victim, ...]:
        """Every gang that may be stopped or shrink, the cheapest for each GPU first."""
        return with_shrinks(self.state, self.later, self.now, self.policy, self.victims)

    @cached_property
    def coming_gpus(self) -> int:
        """GPUs that are free, or of gangs that stop: none of the questions has more."""
        gangs = (self.state.jobs[job_id].gang for job_id in self.state.live)
        stopping = (gang for gang in gangs if gang is not None and gang.leaving)
        return self.state.free_gpus + sum(gang.world_size for gang in stopping)

    @cached_property
    def leaving(self) -> dict[str, int]:
        """GPUs of gangs that stop, by team."""
        return leaving(self.state)

    @cached_property
    def parts(self) -> dict[str, int]:
        """GPUs that each team is due with its part of the surplus; see parts.py."""
        return parts(self.state)

    @cached_property
    def promised(self) -> dict[str, int]:
        """GPUs reserved for jobs that wait, by team."""
        return promised(self.state)

    def owed(self, job: Job) -> str | None:
        """The nearest team of the job's line into whose guarantee it fits; None: there is none."""
        return owed(self.state, self.promised, job)

    def standing_against(self, job: Job, gpus: int) -> Callable[[Job], float]:
        """How a job that waits will stand with so many GPUs, compared with a gang.

        Within one team the share is that of both, whichever has the GPUs.
        """
        order, line = self.policy.order, usage.line_of
        alone = order.standing(job, self.later, self.now)
        grown = order.standing(job, self.later, self.now, more=gpus)
        teams = self.state.teams

        def against(other: Job) -> float:
            return alone if job.team in line(teams, other.team) else grown

        return against

    @cached_property
    def standings(self) -> Standings:
        """The levels of all GPUs, which a preemption must improve."""
        return Standings(self.state, self.policy.order, self.now)

    def guarantees(self, job: Job, *, whole: bool = False) -> Guarantees:
        """GPUs that teams may lose for this job (`Guarantees`)."""
        line = usage.line_of(self.state.teams, job.team)
        return Guarantees(self.state, self.leaving, line, whole=whole)

    def parts_of_others(self, job: Job) -> Guarantees:
        """GPUs that teams may lose for this job if each keeps its part of the surplus."""
        line = usage.line_of(self.state.teams, job.team)
        return others_keep(self.state, self.leaving, line, self.parts)

    def victim_sets(
        self, wanted: Wanted, snapshot: Snapshot, victims: Sequence[Victim]
    ) -> Iterator[VictimSet]:
        """Sets of these that make room for a job, best first.

        Last come those with gangs that could stop others in turn; and for one that is owed, when
        no other set exists, those with a gang of which a part was not borrowed.
        """
        settings = self.policy.preemption
        calm = steady(victims, settings)
        found = False
        for victim_set in victim_sets(wanted, snapshot, victims, calm):
            found = True
            yield victim_set
        if not found and settings.whole_gangs == "on" and self.owed(wanted.job) is not None:
            wanted = replace(wanted, guarantees=self.guarantees(wanted.job, whole=True))
            yield from victim_sets(wanted, snapshot, victims, calm)

    def question(self, job: Job) -> Question | None:
        """The job's demand; None when it fits as it is, or no stop can help it."""
        if job.job_id not in self._questions:
            self._questions[job.job_id] = self._question(job)
        return self._questions[job.job_id]

    def _question(self, job: Job) -> Question | None:
        wanted = next_demand(job, self.state).least()
        snapshot = self._snapshot(job.job_id)
        demand = self.ceilings.within(self.later, job, wanted)
        if demand is None:
            return self._own(job, wanted, snapshot)
        if Statement(snapshot).place(demand) is not None:
            return None
        return Question(job, demand, snapshot)

    def enough(self, question: Question, victims: Sequence[Victim]) -> bool:
        """Whether its team may have the GPUs once these are gone."""
        after = without(self.later, victims)
        return self.ceilings.within(after, question.job, question.demand) is not None

    def without(self, job: Job) -> Snapshot:
        """The GPUs that a running gang may use if it gives back its own."""
        snapshot = self._snapshot(job.job_id)
        Statement(snapshot).evict(job)
        return snapshot

    def may_have(self, job: Job, demand: Demand) -> bool:
        """Whether its team may have this gang in the place of the one that runs."""
        after = without(self.later, [Victim(job, job.allocated_gpus, 0.0)])
        return self.ceilings.within(after, job, demand) is not None

    def sooner_s(self, question: Question) -> float:
        """How much sooner the job starts if it need not wait until others end by themselves."""
        name = question.job.job_id
        if name not in self._sooner_s:
            self._sooner_s[name] = self._wait_s(question)
        return self._sooner_s[name]

    def _wait_s(self, question: Question) -> float:
        found = reserve(
            question.job.job_id, question.demand, question.snapshot, self._ends, self.now
        )
        settings = self.policy.preemption
        latest = self.now + settings.horizon
        start = min(latest, found.start) if found is not None else latest
        if question.own:
            start = max(start, min(latest, self._ceiling_allows(question)))
        return (start - self.now - settings.checkpoint).total_seconds()

    @cached_property
    def later(self) -> State:
        """The use of teams once all stops and reservations have ended."""
        used = dict(self.state.used)
        for name, gpus in self.promised.items():
            used[name] = used.get(name, 0) + gpus
        for name, gpus in self.leaving.items():
            used[name] = used.get(name, 0) - gpus
        return replace(self.state, used=used)

    @cached_property
    def _base(self) -> Snapshot:
        """The free GPUs once all stopping gangs are gone."""
        state = self.state
        snapshot = Snapshot(state.free, state.nodes, levels=state.levels, placer=self.policy.placer)
        statement = Statement(snapshot)
        for job_id in state.live:
            job = state.jobs[job_id]
            if job.gang is not None and job.gang.leaving:
                statement.evict(job)
        return snapshot

    def _snapshot(self, job_id: str) -> Snapshot:
        snapshot = self._base.copy()
        for other, reserved in self.state.reserved.items():
            if other != job_id:
                snapshot.keep(dict(reserved.nodes), need_of(self.state, other))
        for reservation in self._made:
            if reservation.job_id != job_id:
                snapshot.keep(dict(reservation.kept))
                snapshot.claim(reservation.nodes, self.state.jobs[reservation.job_id].team)
        return snapshot

    @cached_property
    def _ends(self) -> Ends:
        running = (self.state.jobs[job_id] for job_id in self.state.live)
        return sorted(
            (self.estimates.end(job), job.job_id, job)
            for job in running
            if job.gang is not None and not job.gang.leaving
        )

    def _own(self, job: Job, wanted: Demand, snapshot: Snapshot) -> Question | None:
        """Its team has too many GPUs: the cheapest of its own gangs until it may have these."""
        if self.ceilings.over_budget(self.state, job.team) is not None:
            return None
        tightest = self.ceilings.tightest(self.later, job.team)
        short = wanted.gpus - self.ceilings.room(self.later, job.team, wanted.gpus)
        own: list[Victim] = []
        missing = short
        stands, checks = self.standing_against(job, wanted.gpus), 0
        seen: set[str] = set()
        for victim in self.steps:
            if victim.standing <= stands(victim.job) or tightest not in victim.line:
                continue
            if victim.job.job_id in seen:
                continue
            seen.add(victim.job.job_id)
            own.append(victim)
            missing -= victim.gpus
            if missing > 0:
                continue
            demand = self.ceilings.within(without(self.later, own), job, wanted)
            if demand is not None:
                return Question(job, demand, snapshot, tuple(own), short, tightest)
            checks += 1
            if checks == MOST_CHECKS:
                return None
        return None

    def _ceiling_allows(self, question: Question) -> datetime:
        """When its team may have the GPUs, if no gang is stopped; after `horizon` if ever."""
        ended: list[Victim] = []
        for end, _, job in self._ends:
            if end > self.now + self.policy.preemption.horizon:
                break
            ended.append(Victim(job, job.allocated_gpus, 0.0))
            if job.team == question.job.team and self.enough(question, ended):
                return end
        return self.now + self.policy.preemption.horizon + timedelta(seconds=1)
