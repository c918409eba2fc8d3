"""One walk through the queue: which jobs start now, and the reservations of those that cannot.

The claims of teams come first, the rest of the queue in the policy's order (cycle.py has the steps
and the cost).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from gangline_scheduler.core.allocate import allocate, need_of, next_demand
from gangline_scheduler.core.model import Demand, Job
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.claims import Claims
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.eligible import fits_empty_cluster, too_large
from gangline_scheduler.core.policy.estimate import Estimates
from gangline_scheduler.core.policy.order import Group, Order
from gangline_scheduler.core.policy.placement import lacking, most_room, place
from gangline_scheduler.core.policy.reservation import DEPTH, Ends, Reservation, reserve, returning
from gangline_scheduler.core.policy.share import Ceilings
from gangline_scheduler.core.policy.statement import Snapshot, Statement
from gangline_scheduler.core.policy.victims import owed, promised
from gangline_scheduler.core.reserved_gpus import by_promise, charged, free_for, still_free
from gangline_scheduler.core.state import State
from gangline_scheduler.core.usage import line_of
from gangline_scheduler.core.values import replace

BACKFILL_DEPTH = 1000
"""So many jobs are looked at behind the first reservation."""
CLAIMS = 10
"""So many jobs that do not fit yet into what their teams are guaranteed get a reservation."""
RECOVERIES = 10
"""So many gangs that failed get a reservation, whatever the depth is for the others."""


class Pass:
    """One walk through the queue.

    `now`: what may be used by jobs that end before the first reservation; `later`: what is left
    to longer ones.
    """

    def __init__(self, plan: Plan, policy: Policy, most_fruitless: int | None = None) -> None:
        self._plan, self._policy = plan, policy
        self._ceilings = Ceilings(plan.state)
        self._now = self._later = free_for(plan.state, policy)
        self._made: dict[str, Reservation] = {}
        self._until: list[tuple[datetime, Reservation]] = []
        self._found_claims: tuple[int, list[list[tuple[Any, ...]]]] | None = None
        self._failed: dict[tuple[tuple[Any, ...], bool], int] = {}
        self._estimates = Estimates(plan.state, plan.now, policy.default_runtime.total_seconds())
        self._left = most_fruitless
        self._promised = promised(plan.state)
        # A demand that the default placement finds no place for has none until nodes grow.
        self._remembers = policy.placer is place
        self._soon = Claims(plan.state, plan.now, policy, self._estimates)
        self._returns = returning(plan.state, plan.now, policy.node_return)

    @property
    def made(self) -> list[Reservation]:
        """The reservations so far, the first one first."""
        return list(self._made.values())

    def run(self, *, start: bool = True) -> list[Reservation]:
        """The whole queue. `start` False: no job starts, for the reservations alone."""
        plan, order = self._plan, self._policy.order
        walk = order.walk(lambda: plan.state, plan.now)
        left = BACKFILL_DEPTH
        while self._now.free_gpus > 0 and left > 0 and (job := walk.next()) is not None:
            if self._left is not None and self._left <= 0:
                break
            if self._made:
                left -= 1
            wanted = next_demand(job, plan.state)
            if self._remembers and not self._returns and too_large(plan.state, wanted.least()):
                walk.drop()
                continue
            demand = self._ceilings.within(charged(plan.state, job.job_id), job, wanted)
            if demand is None:
                walk.drop()
                continue
            if start and self._try(job, demand):
                continue
            if self._reserve(job, demand):
                continue
            if order.strict and fits_empty_cluster(plan.state, demand):
                break
            if not self._made:
                walk.drop()
        return self.made

    def start_claims(self) -> None:
        """Jobs within their teams' guarantees start before those that would be stopped for them.

        Restarts keep their place before all. A strict order lets no job past.
        """
        plan = self._plan
        if not self._may_claim():
            return
        for places in self._claims():
            for *_, job_id in places:
                job = plan.state.jobs[job_id]
                if self._left is not None and self._left <= 0:
                    return
                if not (job.restarting or owed(plan.state, self._promised, job)):
                    break
                wanted = next_demand(job, plan.state)
                demand = self._ceilings.within(charged(plan.state, job.job_id), job, wanted)
                if demand is None or not self._try(job, demand):
                    break

    def reserve_claims(
        self,
        *,
        most: int = CLAIMS,
        refused: frozenset[str] = frozenset(),
        from_now: bool = True,
    ) -> bool:
        """Claims that do not fit yet get reservations, if gangs may be stopped for them soon.

        Whether any does.

        `most`: so many. `refused`: not these, nor their equals. `from_now`: also those whose gangs
        may be stopped at once, until it is tried (preemption_plan.py).
        """
        if not DEPTH[self._policy.reservation] or not self._may_claim():
            return False
        teams, promised = self._plan.state.teams, dict(self._promised)
        for places in self._claims():
            for *_, job_id in places:
                if len(self._made) >= most or self._now.free_gpus <= 0:
                    return bool(self._made)
                job = self._plan.state.jobs[job_id]
                if job_id in self._plan.state.reserved:
                    continue
                name = owed(self._plan.state, promised, job) if job_id not in refused else None
                if name is None or not self._reserve_claim(job, name, from_now=from_now):
                    break
                for above in line_of(teams, job.team):
                    promised[above] = promised.get(above, 0) + job.fewest
        return bool(self._made)

    def _may_claim(self) -> bool:
        return self._now.free_gpus > 0 and claims_go_first(self._policy)

    def _reserve_claim(self, job: Job, name: str, *, from_now: bool) -> bool:
        plan = self._plan
        wanted = next_demand(job, plan.state)
        demand = self._ceilings.within(charged(plan.state, job.job_id), job, wanted)
        if demand is None:
            return False
        ends, gpus = self._soon.ends(job, name)
        if self._now.free_gpus + gpus < demand.least().gpus:
            return False
        found = reserve(
            job.job_id,
            demand.least(),
            self._now,
            ends,
            plan.now,
            made=self._until,
            kept=self._later,
        )
        latest = ends[-1][0] if ends else plan.now
        if found is None or found.start > latest or (found.start <= plan.now and not from_now):
            return False
        self._keep(job, replace(found, claim=True))
        return True

    def _claims(self) -> list[list[tuple[Any, ...]]]:
        """Groups of jobs that their teams are owed, and restarts, in the policy's order.

        Of an order that has one list, each of the first `BACKFILL_DEPTH` jobs is a group.
        They are looked up again when something was decided since.
        """
        decided = len(self._plan.decisions)
        if self._found_claims is None or self._found_claims[0] != decided:
            state, now = self._plan.state, self._plan.now
            found = claims_of(state, now, self._policy.order, self._promised)
            self._found_claims = decided, found
        return self._found_claims[1]

    def _try(self, job: Job, demand: Demand) -> bool:
        short = self._ends_before_reservations(job)
        kind = (demand.kind(), short)
        fewest = demand.fewest or demand.gpus
        if fewest >= self._failed.get(kind, fewest + 1):
            return False
        if self._remembers and self._was_fruitless(demand):
            self._failed[kind] = fewest
            return False
        statement = Statement(self._now if short else self._later)
        found = statement.place(demand)
        if found is None:
            self._failed[kind] = fewest
            self._found_nothing(demand, short=short)
            return False
        statement.commit()
        if self._now is not self._later:
            (self._later if short else self._now).take(demand, found)
        allocate(self._plan, job, found)
        return True

    def _was_fruitless(self, demand: Demand) -> bool:
        """Whether it did not fit in an earlier pass, and nothing since can have changed that."""
        state, least = self._plan.state, demand.least()
        free = state.free
        return too_large(state, least) or free.searches.fails(
            least, lambda node_id: most_room(least, free, node_id)
        )

    def _found_nothing(self, demand: Demand, *, short: bool) -> None:
        if self._left is not None:
            self._left -= 1
        state, least = self._plan.state, demand.least()
        if short and self._remembers and fits_empty_cluster(state, least):
            missing = lacking(least, self._now.free, state.levels)
            state.free.searches.failed(least, missing)

    def _ends_before_reservations(self, job: Job) -> bool:
        if not self._made:
            return True
        end = self._plan.now + timedelta(seconds=self._estimates.left_s(job))
        return end <= min(reservation.start for reservation in self._made.values())

    def _reserve(self, job: Job, demand: Demand) -> bool:
        if not self._may_reserve(job):
            return False
        if demand.never and self._returns:
            # A node that is back is one that was admitted again.
            back = {node.node_id for _, node in self._returns}
            demand = replace(demand, never=demand.never - back)
        if not self._fits_at_last(demand):
            return False
        found = reserve(
            job.job_id,
            demand,
            self._now,
            self._ends,
            self._plan.now,
            made=self._until,
            kept=self._later,
            returns=self._returns,
        )
        if found is None:
            return False
        self._keep(job, found)
        return True

    def _may_reserve(self, job: Job) -> bool:
        """Whether it has waited long enough, and fewer than the policy's depth have one."""
        policy, state = self._policy, self._plan.state
        depth = DEPTH[policy.reservation]
        most = max(depth, RECOVERIES) if depth and job.restarting else depth
        if sum(not item.claim for item in self._made.values()) >= most:
            return False
        if job.job_id in self._made or job.job_id in state.reserved:
            return False
        return waited(
            job, self._plan.now, max(policy.reserve_after, policy.order.patience(job, state))
        )

    def _keep(self, job: Job, found: Reservation) -> None:
        self._made[job.job_id] = found
        lasts = timedelta(seconds=self._estimates.left_s(job))
        self._until.append((found.start + lasts, found))
        if self._now is self._later:
            self._later = self._now.copy()
        self._later.keep(dict(found.kept))
        self._later.claim(found.nodes, job.team)
        self._failed.clear()

    def _fits_at_last(self, demand: Demand) -> bool:
        """Whether it fits once all that runs has ended and all that is expected back is there."""
        memory, least = self._plan.state.unreservable, demand.least()
        if not self._remembers:
            return True
        if memory.fails(least, lambda _: None):
            return False
        if not self._returns and too_large(self._plan.state, least):
            return False
        if Statement(self._at_last.copy()).place(least) is not None:
            return True
        memory.failed(least, 1)
        return False

    @cached_property
    def _at_last(self) -> Snapshot:
        """The nodes as if nothing ran there, except the GPUs reserved for jobs that wait."""
        state = self._plan.state
        last = Snapshot(state.empty, state.nodes, levels=state.levels, placer=self._policy.placer)
        for _, node in self._returns:
            last.free.put(node)
        for job_id, reserved in by_promise(state):
            last.keep(still_free(state, job_id, reserved), need_of(state, job_id))
        return last

    @cached_property
    def _ends(self) -> Ends:
        state = self._plan.state
        jobs = (state.jobs[job_id] for job_id in state.live)
        return sorted((self._estimates.end(job), job.job_id, job) for job in jobs)


def waited(job: Job, now: datetime, guard: timedelta) -> bool:
    """Whether it may have a reservation: one that failed has it from the start."""
    return job.restarting or now - job.waiting_since > guard


def claims_go_first(policy: Policy) -> bool:
    """Whether jobs within their teams' guarantees start before the others."""
    return not policy.order.strict and policy.preemption.reclaim == "on"


def claims_of(
    state: State, now: datetime, order: Order, given: Mapping[str, int]
) -> list[list[tuple[Any, ...]]]:
    """Groups of jobs that their teams are owed, and restarts, in this order.

    Of an order that has one list, each of the first `BACKFILL_DEPTH` jobs is a group. `given`:
    `promised` of `owed`.
    """
    below = {
        name
        for name in state.teams
        if any(
            state.used.get(above, 0) < state.teams[above].config.gpu_guarantee
            for above in line_of(state.teams, name)
        )
    }
    if not below:
        return []
    groups: list[list[tuple[Any, ...]]] = []
    for group, places in state.queue.groups().items():
        if not isinstance(group, Group):
            groups += [[place] for place in places[:BACKFILL_DEPTH]]
        elif group.team in below or group.restarting:
            groups.append(list(places))
    found = [(state.jobs[places[0][-1]], places) for places in groups]
    claims = [
        (order.rank(job, state, now), places)
        for job, places in found
        if job.restarting or (job.team in below and owed(state, given, job))
    ]
    return [places for _, places in sorted(claims, key=lambda entry: entry[0])]
