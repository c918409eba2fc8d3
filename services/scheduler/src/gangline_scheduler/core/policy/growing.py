"""An elastic gang below its team's guarantee claims more GPUs: others give back what they borrowed.

It takes the largest of its sizes that the guarantee holds and for which gangs of teams above their
guarantees can be stopped, by the rules of reclaim.py. It saves and stops together with them, and
starts with its new size when they have left. Worth it if what it gains until its expected end is
more than its own restart and the others' stops cost. As for any growth (elastic.py), it must have
saved since it started, and it is resized only so often. Idle GPUs come first.

Cost: O(live gangs) when no elastic gang is owed anything; else one search for each size that is
tried, `SIZES` of a gang at most.
"""

from __future__ import annotations

from dataclasses import replace

from gangline_scheduler.core.allocate import next_demand
from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.elastic import growth_cost_gpu_s, may_grow
from gangline_scheduler.core.policy.session import PreemptionPlan, Question, Session
from gangline_scheduler.core.policy.statement import Statement
from gangline_scheduler.core.policy.victims import owed

SIZES = 3


def claim(session: Session) -> PreemptionPlan | None:
    """The first elastic gang in the policy's order that is owed GPUs, and whom to stop for it."""
    state, policy = session.state, session.policy
    if policy.preemption.reclaim == "off":
        return None
    small = [
        job
        for job_id in state.live
        if may_grow(job := state.jobs[job_id], session.now, policy) and _sizes(session, job)
    ]
    for job in sorted(small, key=lambda job: policy.order.rank(job, state, session.now)):
        for size in _sizes(session, job)[:SIZES]:
            found = _for_size(session, job, size)
            if found is not None:
                return found
    return None


def _sizes(session: Session, job: Job) -> list[int]:
    """Those that its team is owed, the largest first."""
    larger = (size for size in job.spec.sizes if size > job.allocated_gpus)
    return sorted((size for size in larger if _owed(session, job, size)), reverse=True)


def _owed(session: Session, job: Job, size: int) -> str | None:
    return owed(session.state, session.promised, job, more=size - job.allocated_gpus)


def _for_size(session: Session, job: Job, size: int) -> PreemptionPlan | None:
    settings, team = session.policy.preemption, _owed(session, job, size)
    outside = [victim for victim in session.steps if team not in victim.line]
    demand = replace(next_demand(job, session.state), gpus=size, fewest=None, counts=())
    snapshot = session.without(job)
    if not outside or not session.may_have(job, demand):
        return None
    if Statement(snapshot.copy()).place(demand) is not None:
        return None
    more = size - job.allocated_gpus
    value = more * session.estimates.left_s(job)
    worth = settings.reclaim_worth
    most = value if worth is None else min(value, more * worth.total_seconds())
    own = growth_cost_gpu_s(job, size, session.now, session.policy)
    wanted = Question(job, demand, snapshot).wanted(session.guarantees(job))
    for found in session.victim_sets(wanted, snapshot, outside):
        if found.cost + own < most:
            return PreemptionPlan(job, "reclaim", found, value)
    return None
