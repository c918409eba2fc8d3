"""GPUs that are being freed, reserved for gangs that wait or move, and the ends of that.

GPUs that are reserved for others are not free for a job, and count as used by their teams. A gang
starts on its reserved GPUs once all of them are free. A reservation ends when it is not needed any
more, or later than was promised.
Cost: O(gangs with reserved GPUs) for each question; to end late ones, also gangs on their nodes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from gangline_scheduler.core.allocate import allocate, need_of, next_demand
from gangline_scheduler.core.invariants import free_and_coming
from gangline_scheduler.core.model import ReservedGpus
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.share import Ceilings
from gangline_scheduler.core.policy.statement import Snapshot, Statement
from gangline_scheduler.core.policy.victims import promised
from gangline_scheduler.core.state import State
from gangline_schemas.events.scheduling import GpusUnreserved, StopReason

MOVES = frozenset({StopReason.RESIZE, StopReason.DRAIN, StopReason.DEFRAGMENT})
"""A gang that stops for these resumes at once, on GPUs that are reserved for it."""


def free_for(state: State, policy: Policy, job_id: str = "") -> Snapshot:
    """The GPUs that a job may use: all free ones except those that are reserved for others.

    On a node where GPUs are reserved for several jobs, the one that is promised them sooner gets
    the first ones.
    """
    snapshot = Snapshot(state.free, state.nodes, levels=state.levels, placer=policy.placer)
    own: dict[str, int] = {}
    for other, reserved in by_promise(state):
        if other == job_id:
            own = dict(reserved.nodes)
            continue
        shares = still_free(state, other, reserved)
        for node_id in own.keys() & shares.keys():
            node = snapshot.free.get(node_id)
            spare = node.size - own[node_id] if node is not None else 0
            shares[node_id] = min(shares[node_id], spare)
        snapshot.keep(shares, need_of(state, other))
    return snapshot


def by_promise(state: State) -> list[tuple[str, ReservedGpus]]:
    """Reserved GPUs by job, in the order in which they are promised."""
    return sorted(state.reserved.items(), key=lambda item: (item[1].until, item[0]))


def charged(state: State, job_id: str) -> State:
    """The state in which teams also use what is reserved for their other jobs that wait."""
    reserved = promised(state, but=job_id)
    if not reserved:
        return state
    used = {**state.used}
    for name, gpus in reserved.items():
        used[name] = used.get(name, 0) + gpus
    return replace(state, used=used)


def still_free(state: State, job_id: str, reserved: ReservedGpus) -> dict[str, int]:
    """Reserved GPUs of a job by node, without those of its own gang, which will move."""
    job = state.jobs.get(job_id)
    parts = job.gang.nodes if job is not None and job.gang is not None else ()
    own = {part.node_id: len(part.gpus) for part in parts}
    return {node_id: gpus - own.get(node_id, 0) for node_id, gpus in reserved.nodes}


def start_on_reserved(plan: Plan, policy: Policy) -> None:
    """The jobs for which GPUs are being freed, on those GPUs, once they are all free."""
    for job_id, reserved in by_promise(plan.state):
        job = plan.state.jobs[job_id]
        if job.gang is not None:
            continue
        snapshot = free_for(plan.state, policy, job_id)
        own = frozenset(node_id for node_id, _ in reserved.nodes)
        others = frozenset(node.node_id for node in snapshot.free.nodes()) - own
        statement = Statement(snapshot.without(others))
        # Other free GPUs there are for the gangs that gave.
        given = sum(gpus for _, gpus in reserved.nodes)
        wanted = next_demand(job, plan.state).at_most(given)
        if _coming(plan.state, reserved):
            wanted = replace(wanted, gpus=given, fewest=None, counts=())
        demand = Ceilings(plan.state).within(charged(plan.state, job_id), job, wanted)
        found = statement.place(demand) if demand is not None else None
        if found is not None:
            allocate(plan, job, found)
            plan.add(job_id, GpusUnreserved(job_id=job_id))


def _coming(state: State, reserved: ReservedGpus) -> bool:
    """Whether gangs that make room still leave: an elastic gang does not start with less."""
    gangs = (state.jobs[name].gang for name in reserved.victims if name in state.live)
    return any(gang is not None and gang.leaving for gang in gangs)


def end_reservations(plan: Plan) -> None:
    """End the reservations of jobs that started or ended."""
    for job_id in sorted(plan.state.reserved):
        if not (job_id in plan.state.pending or _moves(plan, job_id)):
            plan.add(job_id, GpusUnreserved(job_id=job_id))


def end_late_reservations(plan: Plan) -> None:
    """End those that are later than promised, or whose nodes no longer have the GPUs.

    A node may take no gangs any more, or have come back with fewer GPUs. Then those that are
    promised sooner stay.
    """
    kept: Counter[str] = Counter()
    for job_id, reserved in by_promise(plan.state):
        nodes = dict(reserved.nodes)
        lost = any(
            kept[node_id] + gpus > sum(free_and_coming(plan.state, node_id))
            for node_id, gpus in nodes.items()
        )
        if lost or plan.now > reserved.until:
            plan.add(job_id, GpusUnreserved(job_id=job_id))
        else:
            kept.update(nodes)


def _moves(plan: Plan, job_id: str) -> bool:
    """Whether its gang still stops, to resume where GPUs are reserved for it."""
    job = plan.state.jobs.get(job_id)
    stop = job.gang.stop if job is not None and job.gang is not None else None
    return stop is not None and stop.reason in MOVES
