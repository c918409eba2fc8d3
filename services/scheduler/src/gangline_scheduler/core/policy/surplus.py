"""Reclaim of the surplus: a team below its part takes from those above theirs.

For a pending job that fits into what its team, or one above it, is due (parts.py). Whom: gangs that
may be stopped (victims.py) of teams outside it that let their surplus be reclaimed; none of them is
taken below its part. So the taker is not above its part afterwards, a giver is not below its own,
and nothing is taken back before jobs, limits or nodes change: no preemption takes a team below its
part either (potential.py).
"""

from __future__ import annotations

from math import inf

from gangline_scheduler.core import usage
from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.clearing import clearings
from gangline_scheduler.core.policy.parts import gives_back
from gangline_scheduler.core.policy.scene import Room, Scene
from gangline_scheduler.core.policy.victims import steady


def due(scene: Scene, job: Job) -> str | None:
    """The nearest team of the job's line that is due its GPUs; None: there is none."""
    state, parts = scene.state, scene.parts
    for name in usage.line_of(state.teams, job.team) if parts else ():
        held = state.used.get(name, 0) + scene.promised.get(name, 0)
        if held + job.fewest <= parts[name]:
            return name
    return None


def reclaim_surplus(scene: Scene, job: Job) -> Room | None:
    """Whom to stop for a job that its team is due; None when it is not, or nobody can be."""
    state, settings = scene.state, scene.policy.preemption
    team = due(scene, job) if settings.reclaim == "on" else None
    if team is None:
        return None
    givers = [
        victim
        for victim in scene.steps
        if team not in usage.line_of(state.teams, victim.job.team)
        and gives_back(state, victim.job.team)
    ]
    question = scene.question(job) if givers else None
    if question is None or question.own:
        return None
    worth = settings.reclaim_worth
    value = question.demand.gpus * worth.total_seconds() if worth is not None else inf
    wanted = question.wanted(scene.parts_of_others(job))
    for found in clearings(wanted, question.snapshot, givers, steady(givers, settings)):
        if found.cost < value:
            return Room(job, "surplus", found, value if worth is not None else 0.0)
    return None
