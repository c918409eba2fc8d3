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
from gangline_scheduler.core.policy.scene import Question, Room, Scene
from gangline_scheduler.core.policy.statement import Statement
from gangline_scheduler.core.policy.victims import owed

SIZES = 3


def claim(scene: Scene) -> Room | None:
    """The first elastic gang in the policy's order that is owed GPUs, and whom to stop for it."""
    state, policy = scene.state, scene.policy
    if policy.preemption.reclaim == "off":
        return None
    small = [
        job
        for job_id in state.live
        if may_grow(job := state.jobs[job_id], scene.now, policy) and _sizes(scene, job)
    ]
    for job in sorted(small, key=lambda job: policy.order.rank(job, state, scene.now)):
        for size in _sizes(scene, job)[:SIZES]:
            found = _for_size(scene, job, size)
            if found is not None:
                return found
    return None


def _sizes(scene: Scene, job: Job) -> list[int]:
    """Those that its team is owed, the largest first."""
    larger = (size for size in job.spec.sizes if size > job.allocated_gpus)
    return sorted((size for size in larger if _owed(scene, job, size)), reverse=True)


def _owed(scene: Scene, job: Job, size: int) -> str | None:
    return owed(scene.state, scene.promised, job, more=size - job.allocated_gpus)


def _for_size(scene: Scene, job: Job, size: int) -> Room | None:
    settings, team = scene.policy.preemption, _owed(scene, job, size)
    outside = [victim for victim in scene.steps if team not in victim.line]
    demand = replace(next_demand(job, scene.state), gpus=size, fewest=None, counts=())
    snapshot = scene.without(job)
    if not outside or not scene.may_have(job, demand):
        return None
    if Statement(snapshot.copy()).place(demand) is not None:
        return None
    more = size - job.allocated_gpus
    value = more * scene.estimates.left_s(job)
    worth = settings.reclaim_worth
    most = value if worth is None else min(value, more * worth.total_seconds())
    own = growth_cost_gpu_s(job, size, scene.now, scene.policy)
    wanted = Question(job, demand, snapshot).wanted(scene.guarantees(job))
    for found in scene.clearings(wanted, snapshot, outside):
        if found.cost + own < most:
            return Room(job, "reclaim", found, value)
    return None
