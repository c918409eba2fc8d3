"""Reclaim: a team below its guarantee gets back GPUs that others have above theirs.

For a pending job that fits into what its team, or one above it, is guaranteed. Whom: gangs that
may be stopped (victims.py) outside that team, whatever their priority, as long as no team is taken
below its own guarantee; so what is reclaimed is never reclaimed back. The cheapest set is taken
(victim_sets.py), whatever it costs: it is owed. `reclaim_worth` bounds that: the set must cost less
than the job's GPUs waiting for so long.
"""

from __future__ import annotations

from math import inf

from gangline_scheduler.core import usage
from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.session import PreemptionPlan, Session


def reclaim(session: Session, job: Job) -> PreemptionPlan | None:
    """The gangs to stop for a job that its team is owed; None when it is not, or none can be."""
    state, settings = session.state, session.policy.preemption
    owed = session.owed(job) if settings.reclaim == "on" else None
    if owed is None or not session.steps:
        return None
    outside = [
        victim
        for victim in session.steps
        if owed not in usage.line_of(state.teams, victim.job.team)
    ]
    question = session.question(job) if outside else None
    if question is None or question.own:
        return None
    if question.snapshot.free_gpus + sum(item.gpus for item in outside) < question.demand.gpus:
        return None
    worth = settings.reclaim_worth
    value = question.demand.gpus * worth.total_seconds() if worth is not None else inf
    wanted = question.wanted(session.guarantees(job))
    for found in session.victim_sets(wanted, question.snapshot, outside):
        if found.cost < value:
            return PreemptionPlan(job, "reclaim", found, value if worth is not None else 0.0)
    return None
