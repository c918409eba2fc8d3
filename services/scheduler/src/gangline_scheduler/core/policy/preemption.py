"""Preemption: an urgent job that does not fit has others stopped for it, if that is worth it.

Pending jobs of a priority below `preempt_below` preempt. Victims are gangs that may be stopped
(victims.py) and stand worse. The measure is the priority plus the points of a team above its share,
without points for waiting; the waiting job counts with the GPUs that it asks for. The standings
must improve
(potential.py). No team outside the job's line is taken below its guarantee, nor below its part of
a surplus that is divided by weight (parts.py): it would take that back.

When: the cheapest set (victim_sets.py) is taken only if it costs less than it is worth:

    value = the job's GPUs x seconds that it starts sooner

against the start that it would get when gangs end by themselves (reservation.py), at most `horizon`
away. Cost: O(running gangs) when all that stand worse would not do; else that of the search, and of
one reservation.
"""

from __future__ import annotations

from collections.abc import Callable

from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.config import Preemption
from gangline_scheduler.core.policy.session import PreemptionPlan, Session


def urgent(job: Job, settings: Preemption) -> bool:
    """Whether others may be stopped for this job's priority."""
    return settings.preempt == "on" and job.priority < settings.preempt_below


def preempt(session: Session, job: Job) -> PreemptionPlan | None:
    """The gangs to stop for this job; None when none need be, or it is not worth it."""
    stands = session.standing_against(job, job.fewest)
    if _out_of_reach(session, job, stands):
        return None
    worse = [victim for victim in session.steps if victim.standing > stands(victim.job)]
    question = session.question(job) if worse else None
    if question is None:
        return None
    freed = sum(victim.gpus for victim in worse)
    if question.snapshot.free_gpus + freed < question.demand.gpus:
        return None
    value = question.demand.gpus * session.sooner_s(question)
    if value <= min(victim.cost for victim in worse):
        return None
    gpus = question.demand.gpus
    wanted = question.wanted(
        session.parts_of_others(job),
        lambda victims: session.enough(question, victims),
        lambda victims: session.standings.improves(
            job, gpus, [(item.job, item.left) for item in victims]
        ),
    )
    for found in session.victim_sets(wanted, question.snapshot, worse):
        if found.cost < value:
            return PreemptionPlan(job, "preempt", found, value)
    return None


def _out_of_reach(session: Session, job: Job, stands: Callable[[Job], float]) -> bool:
    """Whether no gang stands worse, or stopping all that do is not enough.

    Mostly so: it is looked at before who of them may be stopped, and what is free for the job.
    """
    state, missing = session.state, job.fewest - session.coming_gpus
    for job_id in state.live:
        other = state.jobs[job_id]
        if other.gang is None or other.gang.stop is not None:
            continue
        if session.policy.order.standing(other, session.later, session.now) > stands(other):
            missing -= other.allocated_gpus
            if missing <= 0:
                return False
    return True
