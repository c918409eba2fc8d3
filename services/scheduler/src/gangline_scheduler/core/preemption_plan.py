"""Stops running gangs for waiting jobs that may have them stopped: the choice and its events.

After a pass, on a tick
1. The first job of each group of equal ones that waits and has no reserved GPUs yet, in the order
   of the policy. These are urgent ones, those that their teams are owed, and those for which enough
   GPUs are free, but apart.
2. For each in turn: move others out of the way (policy/defragment.py), else take back what its
   team is owed (policy/reclaim.py), else preempt (policy/preemption.py).
3. If that is worth it: `gpus.reserved` for the job, with cost and value, and `gang.stopping` for
   each victim, in one decision. No other job gets the GPUs before it starts on them (cycle.py).
For at most `most_per_pass` jobs, and after `MOST_TRIED` that could not be helped no more are tried.
Elastic gangs gave way before (relocate.py); one that its team is owed more GPUs for gets them last
(policy/growing.py). A job that is urgent or owed is tried at once when it joins the queue, unless
elastic gangs can give way for it on the next tick.

Cost: O(groups of pending jobs) when no job qualifies; for each job tried that of the search.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from operator import itemgetter

from gangline_bus.decision import InvariantViolated
from gangline_scheduler.core import jobs, relocate
from gangline_scheduler.core.allocate import next_demand
from gangline_scheduler.core.model import Job
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.defragment import defragment, moves_left
from gangline_scheduler.core.policy.eligible import fits_empty_cluster
from gangline_scheduler.core.policy.growing import claim
from gangline_scheduler.core.policy.order import Listed
from gangline_scheduler.core.policy.placement import Placement
from gangline_scheduler.core.policy.potential import not_better
from gangline_scheduler.core.policy.preemption import preempt, urgent
from gangline_scheduler.core.policy.reclaim import reclaim
from gangline_scheduler.core.policy.reservation import Reservation
from gangline_scheduler.core.policy.session import PreemptionPlan, Session
from gangline_scheduler.core.policy.surplus import due, reclaim_surplus
from gangline_schemas.events.scheduling import GpusReserved, NodeShare, StopReason

MOST_TRIED = 4
"""So many jobs that cannot be helped are tried in a pass."""


def stop_for_waiting(plan: Plan, policy: Policy, made: Sequence[Reservation]) -> None:
    """See the module; `made` is what the pass reserved for whom."""
    if not plan.state.pending or not _anybody(plan, policy):
        return
    failed: set[str] = set()
    for _ in range(policy.preemption.most_per_pass):
        session = Session(plan.state, plan.now, policy, made)
        room = _first_room(session, failed)
        if room is None:
            return
        _reserve(plan, policy, room)


def stop_for(plan: Plan, policy: Policy, job_id: str) -> None:
    """Try it for one job that just began to wait, if it is urgent or owed."""
    job = plan.state.jobs.get(job_id)
    if job is None or job_id not in plan.state.pending:
        return
    session = Session(plan.state, plan.now, policy)
    if not _has_a_claim(session, job) or not _anybody(plan, policy):
        return
    if relocate.shrinking_for(plan, policy, job) is None:
        room = _room(session, job)
        if room is not None:
            _reserve(plan, policy, room)


def grow(plan: Plan, policy: Policy) -> None:
    """Let an elastic gang have what its team is owed (policy/growing.py)."""
    state = plan.state
    if not _anybody(plan, policy):
        return
    if any(state.jobs[job_id].spec.resources.min_gpus for job_id in state.live):
        room = claim(Session(state, plan.now, policy))
        if room is not None:
            _reserve(plan, policy, room)


def _anybody(plan: Plan, policy: Policy) -> bool:
    """Whether anything running may ever be stopped for others, or shrink for them."""
    settings = policy.preemption
    if {settings.preempt, settings.reclaim, settings.defragment} == {"off"}:
        return False
    specs = (plan.state.jobs[job_id].spec for job_id in plan.state.live)
    return any(spec.preemptible or spec.resources.min_gpus is not None for spec in specs)


def _first_room(session: Session, failed: set[str]) -> PreemptionPlan | None:
    """Stops for the first job that can be helped; adds those that cannot to `failed`."""
    for job in _candidates(session):
        if job.job_id in failed:
            continue
        if len(failed) >= MOST_TRIED:
            return None
        room = _room(session, job)
        if room is not None:
            return room
        failed.add(job.job_id)
    return None


def _candidates(session: Session) -> list[Job]:
    """The first of each group that qualifies, those with a claim first, in the policy's order.

    Of an order that is one list, the first that qualifies alone: those behind it would stop gangs
    whose GPUs it waits for.
    """
    state, order = session.state, session.policy.order
    heads = [
        (not claims, order.rank(job, state, session.now), job)
        for places in state.queue.groups().values()
        if (job := _first(session, places)) is not None
        if (claims := _has_a_claim(session, job)) or _fits_if_moved(session, job)
        if fits_empty_cluster(state, next_demand(job, state))
    ]
    if isinstance(order, Listed) and heads:
        heads = [min(heads, key=itemgetter(1))]
    return [job for *_, job in sorted(heads, key=itemgetter(0, 1))]


def _first(session: Session, places: Iterable[tuple[object, ...]]) -> Job | None:
    ids = (str(place[-1]) for place in places)
    job_id = next((job_id for job_id in ids if job_id not in session.state.reserved), None)
    return None if job_id is None else session.state.jobs[job_id]


def _fits_if_moved(session: Session, job: Job) -> bool:
    """Whether enough GPUs are free for it, but apart, and gangs may be moved."""
    enough = session.state.free_gpus >= job.fewest and moves_left(session) > 0
    return enough and session.ceilings.allows(session.state, job)


def _has_a_claim(session: Session, job: Job) -> bool:
    settings = session.policy.preemption
    owed = settings.reclaim == "on" and (session.owed(job) or due(session, job)) is not None
    return owed or urgent(job, settings)


def _room(session: Session, job: Job) -> PreemptionPlan | None:
    room = defragment(session, job) or reclaim(session, job) or reclaim_surplus(session, job)
    if room is None and urgent(job, session.policy.preemption):
        room = preempt(session, job)
    return room


def _reserve(plan: Plan, policy: Policy, room: PreemptionPlan) -> None:
    """Adds the events: the reservation with its reason, and the stops."""
    victim_set, state = room.victim_set, plan.state
    whole = policy.preemption.whole_gangs == "on"
    left = {victim.job.job_id: victim.left for victim in victim_set.victims}
    grows = room.job.gang is not None
    stopping = [victim.job for victim in victim_set.victims] + [room.job] * grows
    last = plan.now + timedelta(seconds=max(job.spec.stop_grace_seconds for job in stopping))
    until = last + policy.preemption.reserve_margin
    reserved = GpusReserved(
        job_id=room.job.job_id,
        nodes=_shares(victim_set.placement),
        reason=room.reason,
        victims=tuple(victim.job.job_id for victim in victim_set.victims),
        cost_gpu_seconds=victim_set.cost,
        value_gpu_seconds=room.value,
        until=until,
    )
    worse = not_better(state, reserved, left, policy.order, plan.now, whole=whole)
    if worse:
        raise InvariantViolated("; ".join(worse))
    plan.add(room.job.job_id, reserved)
    if grows:
        jobs.resize_gang(plan, room.job.job_id, victim_set.placement.gpus)
    why = StopReason.DEFRAGMENT if room.moves else StopReason.PREEMPTED
    for victim in victim_set.victims:
        if victim.left:
            jobs.resize_gang(plan, victim.job.job_id, victim.left)
        else:
            plan.stop(victim.job, why)
    for victim, placement in room.moves:
        _reserve_for_moved(plan, victim.job.job_id, placement, until)


def _reserve_for_moved(plan: Plan, job_id: str, placement: Placement, until: datetime) -> None:
    plan.add(
        job_id,
        GpusReserved(job_id=job_id, nodes=_shares(placement), reason="defragment", until=until),
    )


def _shares(placement: Placement) -> tuple[NodeShare, ...]:
    return tuple(NodeShare(node_id=part.node_id, gpus=len(part.gpus)) for part in placement.parts)
