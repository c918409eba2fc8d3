"""The scheduling pass: who starts now, and what those who don't are told.

One pass
1. The pending jobs in fair-share order (policy/order.py).
2. Each in turn: its team's ceiling (policy/share.py), then a placement of the whole gang on what
   is free (policy/placement.py). It starts, whole, or it waits; a job that doesn't fit does not
   hold up smaller ones behind it,
3. unless the first job that doesn't fit has waited longer than the starvation guard: then the
   nodes that it needs are kept for it (policy/reservation.py).
4. On a tick, the first `REASONED` jobs are told why they wait, when that changed.

When: a full pass on a tick and when capacity, limits or the queue's obstacles change; a job that
just joined the queue is tried alone, because nobody who waits fits (or it waits for the tick, if
somebody has waited longer than the guard).

Cost of a full pass: O(P log P) for P pending jobs, plus O(nodes) for each allocation and for each
kind of demand that failed (the same or a larger demand of the kind is not tried again within the
pass); nothing at all when no GPU is free. A single trial: O(nodes). Figures are in
docs/concepts/scheduling.md.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice

from gangline_scheduler.model import Job
from gangline_scheduler.plan import Plan
from gangline_scheduler.policy.order import in_order
from gangline_scheduler.policy.placement import Demand, Part, demand_of
from gangline_scheduler.policy.reasons import Explainer, Reason, later
from gangline_scheduler.policy.reservation import reserve
from gangline_scheduler.policy.share import Ceilings
from gangline_scheduler.policy.statement import Snapshot, Statement
from gangline_scheduler.state import State
from gangline_schemas.events.scheduling import (
    GangAllocated,
    JobWaiting,
    NodeAssignment,
    Rendezvous,
)
from gangline_schemas.job import JobState

REASONED = 50
REASON_EVERY = timedelta(seconds=15)
_NOTHING_KEPT: tuple[str, frozenset[str]] = ("", frozenset())


def run_pass(plan: Plan, guard: timedelta) -> None:
    """Start every job that can start now, in order."""
    state = plan.state
    if not state.pending or state.free_gpus <= 0:
        return
    snapshot = Snapshot(state.free)
    ceilings = Ceilings(state)
    failed: dict[Demand, int] = {}
    kept = False
    for job in in_order(lambda: plan.state, plan.now):
        if snapshot.free_gpus <= 0:
            return
        if not ceilings.allows(plan.state, job):
            continue
        demand = demand_of(job, plan.state.nodes)
        kind = replace(demand, gpus=1)
        smallest_failed = failed.get(kind)
        tried = smallest_failed is None or demand.gpus < smallest_failed
        if tried and _try(plan, job, demand, snapshot):
            continue
        if tried:
            failed[kind] = demand.gpus
        if not kept and _waited(job, plan.now, guard):
            nodes = reserve(demand, plan.state.nodes)
            kept = bool(nodes)
            snapshot = snapshot.without(nodes)


def try_alone(plan: Plan, job_id: str, guard: timedelta) -> None:
    """Start one job that just began to wait, if it can; nobody else who waits fits."""
    state = plan.state
    oldest = state.jobs[next(iter(state.pending))]
    if state.free_gpus <= 0 or _waited(oldest, plan.now, guard):
        return
    job = state.jobs[job_id]
    if Ceilings(state).allows(state, job):
        _try(plan, job, demand_of(job, state.nodes), Snapshot(state.free))


def kept_now(state: State, now: datetime, guard: timedelta) -> tuple[str, frozenset[str]]:
    """For which job which nodes are kept after a pass; ("", none) when nobody waited too long."""
    if not state.pending or not _waited(state.jobs[next(iter(state.pending))], now, guard):
        return _NOTHING_KEPT
    ceilings = Ceilings(state)
    for job in in_order(lambda: state, now):
        if _waited(job, now, guard) and ceilings.allows(state, job):
            nodes = reserve(demand_of(job, state.nodes), state.nodes)
            if nodes:
                return job.job_id, nodes
    return _NOTHING_KEPT


def give_reasons(plan: Plan, guard: timedelta) -> None:
    """Tell the first jobs of the queue why they wait, each at most every `REASON_EVERY`."""
    state = plan.state
    if not state.pending:
        return
    explainer = Explainer(state, Ceilings(state), kept_now(state, plan.now, guard))
    for job in list(islice(in_order(lambda: state, plan.now), REASONED)):
        _tell(plan, job, explainer.explain(job))


def give_first_reason(plan: Plan, job_id: str, guard: timedelta) -> None:
    """Tell a job that just began to wait why; shortly, when the queue is long."""
    job = plan.state.jobs.get(job_id)
    if job is None or job_id not in plan.state.pending or job.waiting is not None:
        return
    if len(plan.state.pending) > REASONED:
        _tell(plan, job, later())
        return
    kept = kept_now(plan.state, plan.now, guard)
    _tell(plan, job, Explainer(plan.state, Ceilings(plan.state), kept).explain(job))


def _try(plan: Plan, job: Job, demand: Demand, snapshot: Snapshot) -> bool:
    statement = Statement(snapshot)
    parts = statement.place(demand)
    if parts is None:
        statement.discard()
        return False
    statement.commit()
    _allocate(plan, job, parts)
    return True


def _allocate(plan: Plan, job: Job, parts: tuple[Part, ...]) -> None:
    nodes = plan.state.nodes
    assignments: list[NodeAssignment] = []
    first_rank = 0
    for part in parts:
        info = nodes[part.node_id].info
        assignments.append(
            NodeAssignment(
                node_id=part.node_id,
                incarnation=info.incarnation,
                address=info.address,
                gpus=part.gpus,
                first_rank=first_rank,
            )
        )
        first_rank += len(part.gpus)
    lead = nodes[parts[0].node_id]
    ports = lead.info.rendezvous_ports
    event = GangAllocated(
        job_id=job.job_id,
        attempt=job.attempt + 1,
        team=job.team,
        world_size=first_rank,
        nodes=tuple(assignments),
        # In rotation, so that a port that a dead gang may still hold is used as late as possible.
        rendezvous=Rendezvous(address=lead.info.address, port=ports[lead.led % len(ports)]),
        resume=job.resume,
        spec=job.spec,
    )
    plan.add(job.job_id, event)
    plan.move(job.job_id, JobState.SCHEDULED)


def _tell(plan: Plan, job: Job, reason: Reason) -> None:
    before = job.waiting
    same = before is not None and before.code == reason.code
    if before is not None and same and before.message == reason.message:
        return
    if before is not None and same and plan.now - before.at < REASON_EVERY:
        return
    plan.add(job.job_id, JobWaiting(job_id=job.job_id, code=reason.code, message=reason.message))


def _waited(job: Job, now: datetime, guard: timedelta) -> bool:
    return now - job.waiting_since > guard
