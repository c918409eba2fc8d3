"""Reclaim: a team below its guarantee gets back what others hold above theirs.

For a pending job that fits into what its team, or one above it, is guaranteed. Whom: gangs that
may be stopped (victims.py) outside that team, whatever their priority, as long as no team is taken
below its own guarantee; so what is reclaimed is never reclaimed back. The cheapest set is taken
(clearing.py), whatever it costs: it is owed. `reclaim_worth` bounds that: the set must cost less
than the job's GPUs waiting for so long.
"""

from __future__ import annotations

from math import inf

from gangline_scheduler.core import usage
from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.scene import Room, Scene


def reclaim(scene: Scene, job: Job) -> Room | None:
    """Whom to stop for a job that its team is owed; None when it is not, or nobody can be."""
    state, settings = scene.state, scene.policy.preemption
    owed = scene.owed(job) if settings.reclaim == "on" else None
    if owed is None or not scene.steps:
        return None
    outside = [
        victim for victim in scene.steps if owed not in usage.line_of(state.teams, victim.job.team)
    ]
    question = scene.question(job) if outside else None
    if question is None or question.own:
        return None
    if question.snapshot.free_gpus + sum(item.gpus for item in outside) < question.demand.gpus:
        return None
    worth = settings.reclaim_worth
    value = question.demand.gpus * worth.total_seconds() if worth is not None else inf
    wanted = question.wanted(scene.guarantees(job))
    for found in scene.clearings(wanted, question.snapshot, outside):
        if found.cost < value:
            return Room(job, "reclaim", found, value if worth is not None else 0.0)
    return None
