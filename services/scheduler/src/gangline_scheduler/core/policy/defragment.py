"""Defragmentation: a gang for which enough GPUs are free, but apart, gets them in one place.

Gangs that may be stopped (victims.py) are moved out of the way by checkpoint and restart, only if
the waiting gang fits after that and each of them has its new place in the same snapshot at once:
all are evicted, the waiting gang is placed, then they are, the largest first. Priorities do not
matter, as nobody loses its turn. The cheapest set at the closest level comes first; it must cost
less than starting sooner is worth (preemption.py), and no more than `max_moves_per_hour` gangs are
moved in any hour.
"""

from __future__ import annotations

from datetime import timedelta

from gangline_scheduler.core.allocate import next_demand
from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.clearing import Clearing, clearings
from gangline_scheduler.core.policy.placement import Placement
from gangline_scheduler.core.policy.scene import Question, Room, Scene
from gangline_scheduler.core.policy.statement import Statement
from gangline_scheduler.core.policy.victims import Guarantees, Victim

HOUR = timedelta(hours=1)


def moves_left(scene: Scene) -> int:
    """Gangs that may still be moved now."""
    settings = scene.policy.preemption
    if settings.defragment == "off":
        return 0
    recent = sum(1 for at in scene.state.moved if scene.now - at < HOUR)
    return max(0, settings.max_moves_per_hour - recent)


def defragment(scene: Scene, job: Job) -> Room | None:
    """Whom to move for this job; None when that does not help, or is not worth it."""
    most = moves_left(scene)
    if not most or scene.coming_gpus < job.fewest or not scene.victims:
        return None
    question = scene.question(job)
    if question is None or question.own:
        return None
    if question.snapshot.free_gpus < question.demand.gpus:
        return None
    value = question.demand.gpus * scene.sooner_s(question)
    nobody = Guarantees(scene.state, scene.leaving, scene.state.teams)
    wanted = question.wanted(nobody)
    for found in clearings(wanted, question.snapshot, scene.victims, scene.victims):
        if found.cost < value and 0 < len(found.victims) <= most:
            moves = _moves(scene, question, found)
            if moves is not None:
                return Room(job, "defragment", found, value, moves)
    return None


def _moves(
    scene: Scene, question: Question, found: Clearing
) -> tuple[tuple[Victim, Placement], ...] | None:
    """Where each of them goes; None when one has no place."""
    statement = Statement(question.snapshot.copy())
    for victim in found.victims:
        statement.evict(victim.job)
    if statement.place(question.demand) is None:
        return None
    moves: list[tuple[Victim, Placement]] = []
    for victim in sorted(found.victims, key=lambda victim: (-victim.gpus, victim.turn)):
        placement = statement.place(next_demand(victim.job, scene.state))
        if placement is None:
            return None
        moves.append((victim, placement))
    return tuple(moves)
