"""The scheduling pass: which jobs start now, and why the others wait.

One pass
1. Jobs for which GPUs are being freed start if all of them are there; late GPUs are released.
2. The other pending jobs in the order of the policy (policy/order.py), those first that fit into
   what their teams are guaranteed, as others would be stopped for them. Each in turn: its team's
   ceiling (policy/share.py), then a placement of the whole gang on what is free
   (policy/placement.py). It starts, whole, or it waits; a job that doesn't fit does not hold up
   smaller ones behind it (but in a strict order),
3. unless it has waited longer than the guard, or failed: then it gets a reservation, and who comes
   behind it starts only if that does not delay it (policy/reservation.py).
   A claim that does not fit yet gets one too, if gangs may be stopped for it soon
   (policy/claims.py).
4. On a tick, changed reasons of the first `REASONED` jobs are written (waiting_reasons.py).

When: a full pass on a tick and when capacity, limits or the queue's obstacles change. A job that
just joined the queue is tried alone, because no other that waits fits. It waits for the tick if
another has waited longer than the guard, or has a claim that a reservation may be for.

Cost of a full pass: O(log groups) for each job looked at. A group of which one job did not fit is
left out as a whole. The same or a larger demand of the kind is not tried again, in this pass or in
later ones, until nodes grow for it (searches.py). Each start is one placement. A pass that
is not of a tick ends after `MOST_FRUITLESS` searches that found nothing; the next tick has all.
Nothing at all when no GPU is free. A single trial: one placement. docs/concepts/scheduling.md
tells how it grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gangline_scheduler.core.allocate import allocate, next_demand
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.reservation import DEPTH, Reservation
from gangline_scheduler.core.policy.share import Ceilings
from gangline_scheduler.core.policy.statement import Statement
from gangline_scheduler.core.policy.victims import owed, promised
from gangline_scheduler.core.queue_pass import Pass, waited
from gangline_scheduler.core.reserved_gpus import (
    charged,
    end_late_reservations,
    end_reservations,
    free_for,
    start_on_reserved,
)
from gangline_scheduler.core.state import State

MOST_FRUITLESS = 32
"""So many searches may find nothing in a pass that an input leads to."""


def run_pass(
    plan: Plan,
    policy: Policy,
    *,
    most_fruitless: int | None = None,
    refused: frozenset[str] = frozenset(),
) -> list[Reservation]:
    """Start every job that can start now, in order; what was reserved for those that cannot.

    `most_fruitless`: it ends after so many searches that found nothing; None: with the queue.
    `refused`: jobs whose claims hold no jobs back, as no gangs are stopped for them. If there are
    any, stops were tried already, and claims have reservations only from a later time on.
    """
    end_reservations(plan)
    if plan.state.pending and plan.state.free_gpus > 0:
        start_on_reserved(plan, policy)
    end_late_reservations(plan)
    if not plan.state.pending or plan.state.free_gpus <= 0:
        return []
    queue = Pass(plan, policy, most_fruitless)
    queue.start_claims()
    queue.reserve_claims(refused=refused, from_now=not refused)
    made = queue.run()
    end_reservations(plan)
    return made


def try_alone(plan: Plan, policy: Policy, job_id: str) -> None:
    """Start one job that just began to wait, if it can; no other waiting job fits."""
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
    """Whether a job may have a reservation, so that only full passes start jobs.

    Cost: O(groups of pending jobs + running gangs) while teams are owed GPUs and some are free.
    """
    state = plan.state
    if _anybody_waited(state, plan.now, policy):
        return True
    if len(state.pending) == 1 or owed(state, promised(state), state.jobs[job_id]) is not None:
        return False
    return Pass(plan, policy).reserve_claims(most=1)


def refused(plan: Plan, made: Sequence[Reservation]) -> frozenset[str]:
    """Jobs whose claims could be helped now, and were not."""
    return frozenset(
        item.job_id
        for item in made
        if item.claim and item.start <= plan.now
        if item.job_id in plan.state.pending and item.job_id not in plan.state.reserved
    )


def reservations(state: State, now: datetime, policy: Policy) -> list[Reservation]:
    """The reservations after a pass, when no waiting job could start."""
    if not state.pending:
        return []
    queue = Pass(Plan(state, now), policy)
    queue.reserve_claims(from_now=False)
    return queue.run(start=False) if _anybody_waited(state, now, policy) else queue.made


def _anybody_waited(state: State, now: datetime, policy: Policy) -> bool:
    """Whether anybody has waited longer than the guard, or waits for GPUs that it had."""
    oldest = next(iter(state.pending), None)
    if oldest is None or not DEPTH[policy.reservation]:
        return False
    return bool(state.restarting) or waited(state.jobs[oldest], now, policy.reserve_after)
