"""The scheduling pass: who starts now, and what those who don't are told.

One pass
1. Jobs for which GPUs are being freed start if all of them are there; what is late is let go.
2. The other pending jobs in the order of the policy (policy/order.py), those first that fit into
   what their teams are guaranteed, as others would be stopped for them. Each in turn: its team's
   ceiling (policy/share.py), then a placement of the whole gang on what is free
   (policy/placement.py). It starts, whole, or it waits; a job that doesn't fit does not hold up
   smaller ones behind it (but in a strict order),
3. unless it has waited longer than the guard, or failed: then it gets a reservation, and who comes
   behind it starts only if that does not delay it (policy/reservation.py).
   A claim that does not fit yet gets one too, if gangs may be stopped for it soon
   (policy/claims.py).
   A preemptive order has a pass of its own (policy/rebalance.py).
4. On a tick, the first `REASONED` jobs are told why they wait, when that changed (telling.py).

When: a full pass on a tick and when capacity, limits or the queue's obstacles change; a job that
just joined the queue is tried alone, because nobody who waits fits (or it waits for the tick, if
somebody has waited longer than the guard).

Cost of a full pass: O(log groups) for each job looked at; a group of which one job did not fit is
left out as a whole, and the same or a larger demand of the kind is not tried again, in this pass
or in later ones, until nodes grow for it (searches.py). Each start is one placement. A pass that
is not of a tick ends after `MOST_FRUITLESS` searches that found nothing; the next tick has all.
Nothing at all when no GPU is free. A single trial: one placement. docs/concepts/scheduling.md
tells how it grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from gangline_scheduler.allocate import allocate, need_of, next_demand
from gangline_scheduler.model import Demand, Held, Job
from gangline_scheduler.plan import Plan
from gangline_scheduler.policy import rebalance
from gangline_scheduler.policy.claims import Claims
from gangline_scheduler.policy.config import Policy
from gangline_scheduler.policy.eligible import holdable, too_large
from gangline_scheduler.policy.estimate import Estimates
from gangline_scheduler.policy.order import Group
from gangline_scheduler.policy.placement import lacking, most_room, place
from gangline_scheduler.policy.reservation import DEPTH, Ends, Reservation, reserve, returning
from gangline_scheduler.policy.share import Ceilings
from gangline_scheduler.policy.statement import Snapshot, Statement
from gangline_scheduler.policy.victims import owed, promised
from gangline_scheduler.state import State
from gangline_scheduler.usage import line_of
from gangline_schemas.events.scheduling import GpusUnheld, StopReason

BACKFILL_DEPTH = 1000
"""So many jobs are looked at behind the first reservation."""
MOST_FRUITLESS = 32
"""So many searches may find nothing in a pass that an input leads to."""
CLAIMS = 10
"""So many jobs that do not fit yet into what their teams are guaranteed get a reservation."""
RECOVERIES = 10
"""So many gangs that failed get a reservation, whatever the depth is for the others."""
MOVES = frozenset({StopReason.RESIZE, StopReason.DRAIN, StopReason.DEFRAGMENT})
"""A gang that stops for these goes on at once, on GPUs that are held for it."""


def run_pass(
    plan: Plan,
    policy: Policy,
    *,
    most_fruitless: int | None = None,
    refused: frozenset[str] = frozenset(),
) -> list[Reservation]:
    """Start every job that can start now, in order; what was reserved for those that cannot.

    `most_fruitless`: it ends after so many searches that found nothing; None: with the queue.
    `refused`: jobs whose claims hold nobody back, as no gangs are stopped for them.
    """
    _end_holds(plan)
    if policy.order.preemptive:
        rebalance.run_pass(plan, policy)
        return []
    if plan.state.pending and plan.state.free_gpus > 0:
        _start_held(plan, policy)
    _end_late_holds(plan)
    if not plan.state.pending or plan.state.free_gpus <= 0:
        return []
    queue = _Pass(plan, policy, most_fruitless)
    queue.start_claims()
    queue.reserve_claims(refused=refused)
    made = queue.run()
    _end_holds(plan)
    return made


def try_alone(plan: Plan, policy: Policy, job_id: str) -> None:
    """Start one job that just began to wait, if it can; nobody else who waits fits."""
    state = plan.state
    if state.free_gpus <= 0:
        return
    if policy.order.strict and len(state.pending) > 1:
        return
    job = state.jobs[job_id]
    demand = Ceilings(state).within(charged(state, job_id), job, next_demand(job, state))
    if demand is None:
        return
    found = Statement(free_for(state, policy, job_id)).place(demand)
    if found is not None:
        allocate(plan, job, found)


def guarded(plan: Plan, policy: Policy, job_id: str) -> bool:
    """Whether somebody may have a reservation, so that only full passes start jobs."""
    if DEPTH[policy.reservation] == 0:
        return False
    if _anybody_waited(plan.state, plan.now, policy):
        return True
    job = plan.state.jobs[job_id]
    if owed(plan.state, promised(plan.state), job) is not None:
        return False
    return len(plan.state.pending) > 1 and _Pass(plan, policy, None).reserve_claims()


def refused(plan: Plan, made: Sequence[Reservation]) -> frozenset[str]:
    """Jobs whose claims could be helped now, and were not."""
    return frozenset(
        item.job_id
        for item in made
        if item.claim and item.start <= plan.now
        if item.job_id in plan.state.pending and item.job_id not in plan.state.held
    )


def reservations(state: State, now: datetime, policy: Policy) -> list[Reservation]:
    """What is reserved for whom after a pass, so that nobody who waits could start."""
    if policy.order.preemptive or not state.pending:
        return []
    queue = _Pass(Plan(state, now), policy, None)
    queue.reserve_claims(from_now=False)
    return queue.run(start=False)


def free_for(state: State, policy: Policy, job_id: str = "") -> Snapshot:
    """What a job may use: all that is free but what is being freed for others.

    On a node where GPUs are held for several, who is promised them sooner gets the first ones.
    """
    snapshot = Snapshot(state.free, state.nodes, levels=state.levels, placer=policy.placer)
    own: dict[str, int] = {}
    for other, held in _by_promise(state):
        if other == job_id:
            own = dict(held.nodes)
            continue
        shares = _still_free(state, other, held)
        for node_id in own.keys() & shares.keys():
            node = snapshot.free.get(node_id)
            spare = node.size - own[node_id] if node is not None else 0
            shares[node_id] = min(shares[node_id], spare)
        snapshot.keep(shares, need_of(state, other))
    return snapshot


def _by_promise(state: State) -> list[tuple[str, Held]]:
    return sorted(state.held.items(), key=lambda item: (item[1].until, item[0]))


def charged(state: State, job_id: str) -> State:
    """The state in which teams also use what is held for their other jobs that wait."""
    held = promised(state, but=job_id)
    if not held:
        return state
    used = {**state.used}
    for name, gpus in held.items():
        used[name] = used.get(name, 0) + gpus
    return replace(state, used=used)


def _still_free(state: State, job_id: str, held: Held) -> dict[str, int]:
    """What is held for a job by node, without what its own gang, which is to move, has there."""
    job = state.jobs.get(job_id)
    parts = job.gang.nodes if job is not None and job.gang is not None else ()
    own = {part.node_id: len(part.gpus) for part in parts}
    return {node_id: gpus - own.get(node_id, 0) for node_id, gpus in held.nodes}


class _Pass:
    """One walk through the queue.

    `now`: what may be used by jobs that end before the first reservation; `later`: what is left
    to longer ones.
    """

    def __init__(self, plan: Plan, policy: Policy, most_fruitless: int | None) -> None:
        self._plan, self._policy = plan, policy
        self._ceilings = Ceilings(plan.state)
        self._now = self._later = free_for(plan.state, policy)
        self._made: list[Reservation] = []
        self._until: list[tuple[datetime, Reservation]] = []
        self._failed: dict[tuple[Demand, bool], int] = {}
        self._estimates = Estimates(plan.state, plan.now, policy.default_runtime.total_seconds())
        self._left = most_fruitless
        self._promised = promised(plan.state)
        # What the default placement does not find stays unfound until nodes grow.
        self._remembers = policy.placer is place
        self._soon = Claims(plan.state, plan.now, policy, self._estimates)
        self._returns = returning(plan.state, plan.now, policy.node_return)

    def run(self, *, start: bool = True) -> list[Reservation]:
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
            if order.strict and holdable(plan.state, demand):
                break
            if not self._made:
                walk.drop()
        return self._made

    def start_claims(self) -> None:
        """Jobs within their teams' guarantees start before those that would be stopped for them.

        Restarts keep their place before all. A strict order lets nobody past.
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
        self, *, refused: frozenset[str] = frozenset(), from_now: bool = True
    ) -> bool:
        """Claims that do not fit yet get reservations, if gangs may be stopped for them soon.

        Whether any does.

        `refused`: not these. `from_now`: also those whose gangs may be stopped at once, until it is
        tried (making_room.py).
        """
        if not self._may_claim() or not DEPTH[self._policy.reservation]:
            return False
        for places in self._claims():
            if len(self._made) >= CLAIMS or self._now.free_gpus <= 0:
                break
            job = self._plan.state.jobs[places[0][-1]]
            name = owed(self._plan.state, self._promised, job)
            if name is not None and not {job.job_id} & (refused | self._plan.state.held.keys()):
                self._reserve_claim(job, name, from_now=from_now)
        return bool(self._made)

    def _may_claim(self) -> bool:
        policy = self._policy
        return not (policy.order.strict or policy.preemption.reclaim == "off")

    def _reserve_claim(self, job: Job, name: str, *, from_now: bool) -> None:
        plan = self._plan
        wanted = next_demand(job, plan.state)
        demand = self._ceilings.within(charged(plan.state, job.job_id), job, wanted)
        ends = self._soon.ends(job, name)
        gpus = sum(gang.held_gpus for _, _, gang in ends)
        if demand is None or self._now.free_gpus + gpus < demand.least().gpus:
            return
        found = reserve(
            job.job_id,
            demand.least(),
            self._now,
            ends,
            plan.now,
            made=self._until,
            kept=self._later,
        )
        if found is not None and (from_now or found.start > plan.now):
            self._keep(job, replace(found, claim=True))

    def _claims(self) -> list[list[tuple[Any, ...]]]:
        """Groups of jobs that their teams are owed, and restarts, in the policy's order.

        Of an order that has one list, each of the first `BACKFILL_DEPTH` jobs is a group.
        """
        state, order = self._plan.state, self._policy.order
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
            (order.rank(job, state, self._plan.now), places)
            for job, places in found
            if job.restarting or (job.team in below and owed(state, self._promised, job))
        ]
        return [places for _, places in sorted(claims, key=lambda entry: entry[0])]

    def _try(self, job: Job, demand: Demand) -> bool:
        short = self._ends_before_reservations(job)
        kind = (replace(demand, gpus=1, fewest=None, counts=()), short)
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
        if short and self._remembers and holdable(state, least):
            missing = lacking(least, self._now.free, state.levels)
            state.free.searches.failed(least, missing)

    def _ends_before_reservations(self, job: Job) -> bool:
        if not self._made:
            return True
        end = self._plan.now + timedelta(seconds=self._estimates.left_s(job))
        return end <= min(reservation.start for reservation in self._made)

    def _reserve(self, job: Job, demand: Demand) -> bool:
        policy, now, depth = self._policy, self._plan.now, DEPTH[self._policy.reservation]
        most = max(depth, RECOVERIES) if depth and job.restarting else depth
        taken = {item.job_id for item in self._made}
        if sum(not item.claim for item in self._made) >= most:
            return False
        if job.job_id in taken or job.job_id in self._plan.state.held:
            return False
        guard = max(policy.reserve_after, policy.order.patience(job, self._plan.state))
        if not _waited(job, now, guard):
            return False
        if demand.never and self._returns:
            # A node that is back is one that was admitted anew.
            back = {node.node_id for _, node in self._returns}
            demand = replace(demand, never=demand.never - back)
        if not self._fits_at_last(demand):
            return False
        found = reserve(
            job.job_id,
            demand,
            self._now,
            self._ends,
            now,
            made=self._until,
            kept=self._later,
            returns=self._returns,
        )
        if found is None:
            return False
        self._keep(job, found)
        return True

    def _keep(self, job: Job, found: Reservation) -> None:
        self._made.append(found)
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
        """The nodes as if nothing ran there, but what is held for jobs that wait."""
        state = self._plan.state
        last = Snapshot(state.empty, state.nodes, levels=state.levels, placer=self._policy.placer)
        for _, node in self._returns:
            last.free.put(node)
        for job_id, held in _by_promise(state):
            last.keep(_still_free(state, job_id, held), need_of(state, job_id))
        return last

    @cached_property
    def _ends(self) -> Ends:
        state = self._plan.state
        jobs = (state.jobs[job_id] for job_id in state.live)
        return sorted((self._estimates.end(job), job.job_id, job) for job in jobs)


def _start_held(plan: Plan, policy: Policy) -> None:
    """The jobs for which GPUs are being freed, on those GPUs, once they are all free."""
    for job_id, held in _by_promise(plan.state):
        job = plan.state.jobs[job_id]
        if job.gang is not None:
            continue
        snapshot = free_for(plan.state, policy, job_id)
        own = frozenset(node_id for node_id, _ in held.nodes)
        others = frozenset(node.node_id for node in snapshot.free.nodes()) - own
        statement = Statement(snapshot.without(others))
        # What else is free there is for those who gave.
        given = sum(gpus for _, gpus in held.nodes)
        wanted = next_demand(job, plan.state).at_most(given)
        if _coming(plan.state, held):
            wanted = replace(wanted, gpus=given, fewest=None, counts=())
        demand = Ceilings(plan.state).within(charged(plan.state, job_id), job, wanted)
        found = statement.place(demand) if demand is not None else None
        if found is not None:
            allocate(plan, job, found)
            plan.add(job_id, GpusUnheld(job_id=job_id))


def _coming(state: State, held: Held) -> bool:
    """Whether gangs that make room still leave: an elastic gang does not start with less."""
    gangs = (state.jobs[name].gang for name in held.victims if name in state.live)
    return any(gang is not None and gang.leaving for gang in gangs)


def _end_holds(plan: Plan) -> None:
    """Nothing is kept for who started or ended."""
    for job_id in sorted(plan.state.held):
        if not (job_id in plan.state.pending or _moves(plan, job_id)):
            plan.add(job_id, GpusUnheld(job_id=job_id))


def _end_late_holds(plan: Plan) -> None:
    """Nor for longer than was promised, or on nodes that take no gangs any more."""
    for job_id, held in sorted(plan.state.held.items()):
        lost = any(node_id not in plan.state.free for node_id, _ in held.nodes)
        if lost or plan.now > held.until:
            plan.add(job_id, GpusUnheld(job_id=job_id))


def _moves(plan: Plan, job_id: str) -> bool:
    """Whether its gang still stops, to go on where GPUs are held for it."""
    job = plan.state.jobs.get(job_id)
    stop = job.gang.stop if job is not None and job.gang is not None else None
    return stop is not None and stop.reason in MOVES


def _anybody_waited(state: State, now: datetime, policy: Policy) -> bool:
    """Whether anybody has waited longer than the guard, or waits for GPUs that it had."""
    oldest = next(iter(state.pending), None)
    if oldest is None:
        return False
    return bool(state.restarting) or _waited(state.jobs[oldest], now, policy.reserve_after)


def _waited(job: Job, now: datetime, guard: timedelta) -> bool:
    """Whether it may have a reservation: one that failed has it from the start."""
    return job.restarting or now - job.waiting_since > guard
