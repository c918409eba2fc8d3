"""Defragmentation: a gang for which enough GPUs are free, but apart, gets them in one place.

Gangs that may be stopped (victims.py) are moved out of the way by checkpoint and restart. The
waiting gang must fit after that, and each moved gang must have its new place in the same snapshot:
all are evicted, the waiting gang is placed, then they are, the largest first. Priorities do not
matter, as no gang loses its turn. The cheapest set at the closest level comes first. It must cost
less than starting sooner is worth (preemption.py), and at most `max_moves_per_hour` gangs are moved
in any hour.
"""

from __future__ import annotations

from datetime import timedelta

from gangline_scheduler.core.allocate import next_demand
from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.placement import Placement
from gangline_scheduler.core.policy.session import PreemptionPlan, Question, Session
from gangline_scheduler.core.policy.statement import Statement
from gangline_scheduler.core.policy.victim_sets import VictimSet, victim_sets
from gangline_scheduler.core.policy.victims import Guarantees, Victim
from gangline_schemas.clocks import lasts

HOUR = timedelta(hours=1)


def moves_left(session: Session) -> int:
    """Gangs that may still be moved now."""
    settings = session.policy.preemption
    if settings.defragment == "off":
        return 0
    recent = sum(lasts(at, session.now, HOUR) for at in session.state.moved)
    return max(0, settings.max_moves_per_hour - recent)


def defragment(session: Session, job: Job) -> PreemptionPlan | None:
    """Whom to move for this job; None when that does not help, or is not worth it."""
    most = moves_left(session)
    if not most or session.coming_gpus < job.fewest or not session.victims:
        return None
    question = session.question(job)
    if question is None or question.own:
        return None
    if question.snapshot.free_gpus < question.demand.gpus:
        return None
    value = question.demand.gpus * session.sooner_s(question)
    nobody = Guarantees(session.state, session.leaving, session.state.teams)
    wanted = question.wanted(nobody)
    for found in victim_sets(wanted, question.snapshot, session.victims, session.victims):
        if found.cost < value and 0 < len(found.victims) <= most:
            moves = _moves(session, question, found)
            if moves is not None:
                return PreemptionPlan(job, "defragment", found, value, moves)
    return None


def _moves(
    session: Session, question: Question, found: VictimSet
) -> tuple[tuple[Victim, Placement], ...] | None:
    """Where each of them goes; None when one has no place."""
    statement = Statement(question.snapshot.copy())
    for victim in found.victims:
        statement.evict(victim.job)
    if statement.place(question.demand) is None:
        return None
    moves: list[tuple[Victim, Placement]] = []
    for victim in sorted(found.victims, key=lambda victim: (-victim.gpus, victim.turn)):
        placement = statement.place(next_demand(victim.job, session.state))
        if placement is None:
            return None
        moves.append((victim, placement))
    return tuple(moves)
