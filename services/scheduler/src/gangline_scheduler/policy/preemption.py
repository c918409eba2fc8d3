"""Preemption: an urgent job that does not fit has others stopped for it, if that is worth it.

Who: pending jobs of a priority below `preempt_below`. Whom: gangs that may be stopped
(victims.py) and stand worse: priority plus what their team is above its share, without what waiting
gives. A job that would take its team above its guarantee takes no other team below its own.

When: the cheapest set (clearing.py) is taken only if it costs less than it is worth:

    value = the job's GPUs x seconds that it starts sooner

against the start that it would get when gangs end by themselves (reservation.py), at most `horizon`
away. Cost: O(running gangs) when all that stand worse would not do; else that of the search, and of
one reservation.
"""

from __future__ import annotations

from gangline_scheduler import usage
from gangline_scheduler.model import Job
from gangline_scheduler.policy.clearing import clearings
from gangline_scheduler.policy.config import Preemption
from gangline_scheduler.policy.scene import Room, Scene
from gangline_scheduler.policy.victims import Guarantees


def urgent(job: Job, settings: Preemption) -> bool:
    """Whether others may be stopped for this job's priority."""
    return settings.preempt == "on" and job.priority < settings.preempt_below


def preempt(scene: Scene, job: Job) -> Room | None:
    """Whom to stop for this job; None when nobody needs to be, or it is not worth it."""
    state, order = scene.state, scene.policy.order
    standing = order.standing(job, state, scene.now)
    if _out_of_reach(scene, job, standing):
        return None
    worse = [victim for victim in scene.victims if victim.standing > standing]
    question = scene.question(job) if worse else None
    if question is None:
        return None
    freed = sum(victim.gpus for victim in worse)
    if question.snapshot.free_gpus + freed < question.demand.gpus:
        return None
    value = question.demand.gpus * scene.sooner_s(question)
    if value <= min(victim.cost for victim in worse):
        return None
    owed = scene.owed(job) is not None
    inside = state.teams if owed else usage.line_of(state.teams, job.team)
    guarantees = Guarantees(state, scene.leaving, inside)
    for found in clearings(
        question.demand,
        question.snapshot,
        worse,
        guarantees,
        first=question.own,
        enough=lambda victims: scene.enough(question, victims),
    ):
        if found.cost < value:
            return Room(job, "preempt", found, value)
    return None


def _out_of_reach(scene: Scene, job: Job, standing: float) -> bool:
    """Whether nobody stands worse, or stopping all who do would not do.

    Mostly so: it is looked at before who of them may be stopped, and what is free for the job.
    """
    state, missing = scene.state, job.fewest - scene.coming_gpus
    for job_id in state.live:
        other = state.jobs[job_id]
        if other.gang is None or other.gang.stop is not None:
            continue
        if scene.policy.order.standing(other, state, scene.now) > standing:
            missing -= other.held_gpus
            if missing <= 0:
                return False
    return True
