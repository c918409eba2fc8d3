"""Reclaim of the surplus: a team below its part takes from those above theirs.

It is for a pending job that fits into the part of its team, or of one above it (parts.py). Victims
are gangs that may be stopped (victims.py) of teams outside it that let their surplus be reclaimed;
none of these is taken below its part. So the taker is not above its part afterwards, and a giver is
not below its own. Nothing is taken back before jobs, limits or nodes change: no preemption takes a
team below its part either (potential.py).
"""

from __future__ import annotations

from math import inf

from gangline_scheduler.core import usage
from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.parts import gives_back
from gangline_scheduler.core.policy.session import PreemptionPlan, Session
from gangline_scheduler.core.policy.victim_sets import victim_sets
from gangline_scheduler.core.policy.victims import steady


def due(session: Session, job: Job) -> str | None:
    """The nearest team of the job's line that is due its GPUs; None: there is none."""
    state, parts = session.state, session.parts
    for name in usage.line_of(state.teams, job.team) if parts else ():
        allocated = state.used.get(name, 0) + session.promised.get(name, 0)
        if allocated + job.fewest <= parts[name]:
            return name
    return None


def reclaim_surplus(session: Session, job: Job) -> PreemptionPlan | None:
    """The gangs to stop for a job that its team is due; None when it is not, or none can be."""
    state, settings = session.state, session.policy.preemption
    team = due(session, job) if settings.reclaim == "on" else None
    if team is None:
        return None
    givers = [
        victim
        for victim in session.steps
        if team not in usage.line_of(state.teams, victim.job.team)
        and gives_back(state, victim.job.team)
    ]
    question = session.question(job) if givers else None
    if question is None or question.own:
        return None
    worth = settings.reclaim_worth
    value = question.demand.gpus * worth.total_seconds() if worth is not None else inf
    wanted = question.wanted(session.parts_of_others(job))
    for found in victim_sets(wanted, question.snapshot, givers, steady(givers, settings)):
        if found.cost < value:
            return PreemptionPlan(job, "surplus", found, value if worth is not None else 0.0)
    return None
