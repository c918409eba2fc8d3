"""Moves and resizes gangs: they save, stop, and resume on GPUs that are reserved for them.

1. **Drain**: a gang on a draining node leaves it right after its next committed checkpoint, so
   that no work is lost, or at once while none of its ranks was seen. The whole gang must fit
   elsewhere, and its GPUs are reserved there. When `drain_within` has passed it leaves anyway, and
   waits in the queue without one.
2. **Resize** (policy/elastic.py), on a tick after the pass: elastic gangs give GPUs to the first
   job that fits then; if no job waits for them, one takes idle GPUs. One resize in a pass.

Cost: O(nodes) for the drain; see the policy for the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal

from gangline_bus.decision import InvariantViolated
from gangline_scheduler.core import jobs
from gangline_scheduler.core.allocate import next_demand
from gangline_scheduler.core.model import Job, Node
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.elastic import Shrinking, growth, may_give, shrinking
from gangline_scheduler.core.policy.eligible import fits_empty_cluster
from gangline_scheduler.core.policy.order import in_order
from gangline_scheduler.core.policy.parts import parts
from gangline_scheduler.core.policy.placement import Placement
from gangline_scheduler.core.policy.potential import taken_from_guarantees
from gangline_scheduler.core.policy.statement import Statement
from gangline_scheduler.core.reserved_gpus import free_for
from gangline_schemas.events.checkpoints import CheckpointCommitted
from gangline_schemas.events.scheduling import GpusReserved, NodeShare

HELPED = 10
"""So many jobs of the head of the queue are looked at for a shrink."""


def leave(plan: Plan, policy: Policy) -> None:
    """Gangs on draining nodes that have nothing to lose or have had their time go."""
    for node in _draining(plan):
        since = node.moving_since
        late = since is not None and plan.now >= since + policy.drain_within
        for job_id, _ in node.allocations:
            gang = plan.state.jobs[job_id].gang
            if gang is not None and gang.stop is None and (late or gang.unseen):
                _leave(plan, policy, job_id, anyway=late)
        for job_id, _ in node.cpu_allocations:
            gang = plan.state.jobs[job_id].gang
            if gang is not None and (late or gang.unseen):
                jobs.drain_gang(plan, job_id)


def saved(plan: Plan, policy: Policy, event: CheckpointCommitted) -> None:
    """The live attempt has just saved: if it stands on a draining node, it goes."""
    job = plan.state.jobs.get(event.job_id)
    if job is None or job.gang is None or job.gang.stop is not None:
        return
    if event.checkpoint.attempt != job.attempt or job.resume != event.checkpoint:
        return
    nodes = (plan.state.nodes[part.node_id] for part in job.gang.nodes)
    if not any(node.moving_since is not None for node in nodes):
        return
    if job.cpu_only:
        jobs.drain_gang(plan, event.job_id)
    else:
        _leave(plan, policy, event.job_id, anyway=False)


def resize(plan: Plan, policy: Policy) -> None:
    """Let elastic gangs make room for the first job that waits, or let one grow."""
    state = plan.state
    if not any(state.jobs[job_id].spec.resources.min_gpus for job_id in state.live):
        return
    if _make_room(plan, policy):
        return
    found = growth(free_for(state, policy), state, plan.now, policy)
    if found is not None:
        jobs.resize_gang(plan, found.job.job_id, found.placement.gpus)
        _reserve(
            plan, policy, found.job.job_id, found.placement, "resize", [found.job],
            cost=found.cost_gpu_s, value=found.value_gpu_s,
        )  # fmt: skip


def shrinking_for(plan: Plan, policy: Policy, job: Job) -> Shrinking | None:
    """Which elastic gangs would make room for this job."""
    state = plan.state
    if not any(may_give(state.jobs[job_id], plan.now, policy) for job_id in state.live):
        return None
    snapshot = free_for(state, policy, job.job_id)
    return shrinking(job, next_demand(job, state), snapshot, state, plan.now, policy)


def _shrink(plan: Plan, policy: Policy, job: Job, found: Shrinking) -> None:
    """Stop the gangs that give GPUs to this job, and reserve these for it."""
    taken = taken_from_guarantees(plan.state, job, found.sizes, parts(plan.state))
    if taken:
        raise InvariantViolated("; ".join(taken))
    for other, size in found.sizes:
        jobs.resize_gang(plan, other.job_id, size)
    asked = [other for other, _ in found.sizes]
    _reserve(
        plan, policy, job.job_id, found.placement, "resize", asked,
        victims=tuple(other.job_id for other in asked),
        cost=found.cost_gpu_s, value=found.value_gpu_s,
    )  # fmt: skip


def _draining(plan: Plan) -> Iterator[Node]:
    nodes = plan.state.nodes
    names = sorted(name for name, node in nodes.items() if node.moving_since is not None)
    return (plan.state.nodes[name] for name in names)


def _leave(plan: Plan, policy: Policy, job_id: str, *, anyway: bool) -> None:
    job = plan.state.jobs[job_id]
    snapshot = free_for(plan.state, policy, job_id)
    demand = next_demand(job, plan.state)
    statement = Statement(snapshot)
    statement.evict(job)
    found = statement.place(demand.at_most(job.allocated_gpus))
    if found is None and not anyway:
        return
    jobs.drain_gang(plan, job_id)
    if found is not None and job_id in plan.state.jobs:
        _reserve(plan, policy, job_id, found, "drain", [job])


def _make_room(plan: Plan, policy: Policy) -> bool:
    state = plan.state
    if not any(may_give(state.jobs[job_id], plan.now, policy) for job_id in state.live):
        return False
    walk = in_order(policy.order, lambda: state, plan.now)
    waiting = (
        job
        for job in walk
        if job.job_id not in state.reserved and fits_empty_cluster(state, next_demand(job, state))
    )
    for job in islice(waiting, 1 if policy.order.strict else HELPED):
        found = shrinking_for(plan, policy, job)
        if found is not None:
            _shrink(plan, policy, job, found)
            return True
    return False


def _reserve(
    plan: Plan,
    policy: Policy,
    job_id: str,
    placement: Placement,
    reason: Literal["resize", "drain"],
    stopped: Iterable[Job],
    *,
    victims: tuple[str, ...] = (),
    cost: float = 0.0,
    value: float = 0.0,
) -> None:
    deadlines = [plan.now]
    for job in stopped:
        left = plan.state.jobs.get(job.job_id)  # it fails if it has nothing to resume from
        stop = left.gang.stop if left is not None and left.gang is not None else None
        if stop is not None:
            deadlines.append(stop.deadline)
    shares = tuple(NodeShare(node_id=part.node_id, gpus=len(part.gpus)) for part in placement.parts)
    event = GpusReserved(
        job_id=job_id,
        nodes=shares,
        reason=reason,
        victims=victims,
        cost_gpu_seconds=cost,
        value_gpu_seconds=value,
        until=max(deadlines) + policy.preemption.reserve_margin,
    )
    plan.add(job_id, event)
