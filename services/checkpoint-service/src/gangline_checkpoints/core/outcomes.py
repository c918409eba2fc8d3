"""Decisions about executed effects: commit, abandon, try again."""

from __future__ import annotations

from typing import Literal

from gangline_bus.decision import EffectDone
from gangline_checkpoints.core import advice, effects, references
from gangline_checkpoints.core.closing import abandon
from gangline_checkpoints.core.deleting import delete_surplus, delete_unused
from gangline_checkpoints.core.model import (
    Away,
    Corrupt,
    Found,
    Job,
    Refused,
    Removed,
    Scrub,
    Scrubbed,
    StepId,
    Survey,
    Verified,
    Verify,
    Work,
    merged_metrics,
)
from gangline_checkpoints.core.state import CheckpointPlan
from gangline_schemas.checkpoint import commit_key
from gangline_schemas.events.checkpoints import (
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointScrubbed,
    EffectDeferred,
    ObjectsDeleted,
)
from gangline_schemas.events.scheduling import CheckpointRef

VERIFY_TRIES = 40
"""So often a save that cannot be read holds up a later one of its job: some ten minutes."""


def decide(plan: CheckpointPlan, done: EffectDone) -> None:
    """Decide upon an outcome; nothing when the state no longer requests that effect."""
    effect = effects.effect(plan.state, plan.soft, done.key)
    if effect is None:
        return
    if isinstance(effect, Survey):
        if isinstance(done.result, Found):
            _surveyed(plan, effect, done.result)
        return
    match done.result:
        case Away(reason):
            _defer(plan, effect, reason)
        case Removed():
            _removed(plan, effect)
        case Scrubbed():
            _scrubbed(plan, effect, done.result)
        case Corrupt():
            _corrupt(plan, effect, done.result)
        case Refused(reason):
            abandon(plan, effect.job_id, effect.id, reason)
        case Verified() if isinstance(effect, Verify):
            _commit(plan, effect, done.result)
        case _:
            raise TypeError(f"{done.key}: {type(done.result).__name__} is not an outcome of it")


def _surveyed(plan: CheckpointPlan, effect: Survey, found: Found) -> None:
    """Give up what lies in the store and was never reported: an agent died as it uploaded it."""
    job = plan.state.jobs[effect.job_id]
    for step_id in found.ids:
        known = step_id in job.open or step_id in job.deleting or job.keeps(step_id)
        if not known and step_id.attempt <= job.attempt:
            abandon(plan, effect.job_id, step_id, "no rank reported it before its job ended")


def _removed(plan: CheckpointPlan, effect: Work | Scrub) -> None:
    """The objects are gone, except those of ranks that reported while they were being deleted."""
    job_id, step_id = effect.job_id, effect.id
    late = plan.soft.late.get((job_id, step_id), ())
    if late:
        reason = "parts of it came while its objects were deleted"
        abandon(plan, job_id, step_id, reason, also=late)
        return
    gone = ObjectsDeleted(job_id=job_id, attempt=step_id.attempt, step=step_id.step)
    plan.add(job_id, gone)


def _scrubbed(plan: CheckpointPlan, effect: Work | Scrub, found: Scrubbed) -> None:
    scrubbed = CheckpointScrubbed(
        job_id=effect.job_id,
        attempt=effect.id.attempt,
        step=effect.id.step,
        size_bytes=found.size_bytes,
        read_s=found.read_s,
    )
    plan.add(effect.job_id, scrubbed)


def _corrupt(plan: CheckpointPlan, effect: Work | Scrub, found: Corrupt) -> None:
    job_id, step_id = effect.job_id, effect.id
    corrupted = CheckpointCorrupted(
        job_id=job_id,
        attempt=step_id.attempt,
        step=step_id.step,
        key=found.key,
        reason=found.reason,
    )
    if not isinstance(effect, Scrub):
        plan.add(job_id, corrupted)
        abandon(plan, job_id, step_id, f"{found.key}: {found.reason}")
        return
    for event in references.corrupted(plan.state.find(job_id) or Job(), corrupted):
        plan.add(job_id, event)
    delete_surplus(plan, job_id)


def _commit(plan: CheckpointPlan, effect: Verify, verified: Verified) -> None:
    job_id, step_id = effect.job_id, effect.id
    job = plan.state.jobs[job_id]
    problem = _commit_problem(job, step_id, verified)
    if problem is not None:
        abandon(plan, job_id, step_id, problem)
        return
    committed = CheckpointCommitted(
        job_id=job_id,
        checkpoint=CheckpointRef(
            job_id=job_id,
            attempt=step_id.attempt,
            step=step_id.step,
            world_size=effect.world_size,
            commit_key=commit_key(effect.prefix, step_id.attempt, step_id.step),
        ),
        size_bytes=verified.size_bytes,
        objects=verified.objects,
        whole_bytes=verified.whole_bytes,
        refers=verified.refers,
        write_s=max(shard.write_s for shard in effect.shards),
        blocked_s=max(shard.blocked_s for shard in effect.shards),
        verify_s=verified.verify_s,
        metrics=merged_metrics(effect.shards),
    )
    plan.add(job_id, committed)
    advice.of_save(plan, job_id)
    for other in sorted(job.open):
        if other < step_id:
            abandon(plan, job_id, other, f"step {step_id.step} is committed already")
    delete_surplus(plan, job_id)
    delete_unused(plan, job_id, job.resume)


def _commit_problem(job: Job, step_id: StepId, verified: Verified) -> str | None:
    if step_id.attempt != job.attempt:
        return f"attempt {job.attempt} took over"
    if job.newest is not None and step_id < job.newest:
        return f"step {job.newest.step} is committed already"
    return references.commit_problem(job, step_id, verified.refers)


def _defer(plan: CheckpointPlan, effect: Work | Scrub, reason: str) -> None:
    kind: Literal["verify", "delete", "scrub"]
    kind, tries = "scrub", 0
    if not isinstance(effect, Scrub):
        kind, tries = "verify" if isinstance(effect, Verify) else "delete", effect.tries
    if kind == "verify" and tries + 1 >= VERIFY_TRIES and _later_waits(plan, effect):
        why = f"it could not be verified, and a later one is in the store: {reason}"
        abandon(plan, effect.job_id, effect.id, why)
        return
    event = EffectDeferred(
        job_id=effect.job_id,
        attempt=effect.id.attempt,
        step=effect.id.step,
        effect=kind,
        tries=tries + 1,
        reason=reason,
    )
    plan.add(effect.job_id, event)


def _later_waits(plan: CheckpointPlan, effect: Work | Scrub) -> bool:
    """Perhaps this one alone is unreadable, and its job would commit nothing more."""
    waiting = plan.state.jobs[effect.job_id].open.items()
    return any(step_id > effect.id and opened.written for step_id, opened in waiting)
