"""Decisions about executed effects: commit, abandon, try again."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from gangline_bus.decision import Decision, EffectDone
from gangline_checkpoints.core import advice, effects, references
from gangline_checkpoints.core.closing import abandoned
from gangline_checkpoints.core.deleting import deletions, no_longer_held
from gangline_checkpoints.core.model import (
    Away,
    Corrupt,
    Effect,
    Job,
    Kept,
    Refused,
    Removed,
    Scrub,
    Scrubbed,
    StepId,
    Verified,
    Verify,
    merged_metrics,
)
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.state import CheckpointState
from gangline_schemas.checkpoint import commit_key
from gangline_schemas.events.checkpoints import (
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointScrubbed,
    EffectDeferred,
    ObjectsDeleted,
)
from gangline_schemas.events.scheduling import CheckpointRef


def decide(
    state: CheckpointState, reports: Reports, done: EffectDone, now: datetime
) -> list[Decision]:
    """The decisions on an outcome; [] when the state no longer requests that effect."""
    effect = effects.effect(state, reports, done.key)
    if effect is None:
        return []
    job_id = effect.job_id
    match done.result:
        case Away(reason):
            return [_deferred(effect, reason)]
        case Removed():
            return [_removed(reports, job_id, effect.id)]
        case Corrupt() | Scrubbed():
            return _read(state, reports, effect, done.result)
        case Refused(reason):
            return [abandoned(reports, job_id, effect.id, reason)]
        case Verified() if isinstance(effect, Verify):
            return _commit(state, reports, effect, done.result, now)
        case _:
            raise TypeError(f"{done.key}: {type(done.result).__name__} is not an outcome of it")


def _removed(reports: Reports, job_id: str, step_id: StepId) -> Decision:
    """The objects are gone, except those of ranks that reported while they were being deleted."""
    late = reports.late.get((job_id, step_id), ())
    if late:
        reason = "parts of it came while its objects were deleted"
        return abandoned(reports, job_id, step_id, reason, also=late)
    gone = ObjectsDeleted(job_id=job_id, attempt=step_id.attempt, step=step_id.step)
    return Decision(job_id, gone)


def _read(
    state: CheckpointState, reports: Reports, effect: Effect, found: Corrupt | Scrubbed
) -> list[Decision]:
    job_id, step_id = effect.job_id, effect.id
    if isinstance(found, Scrubbed):
        scrubbed = CheckpointScrubbed(
            job_id=job_id,
            attempt=step_id.attempt,
            step=step_id.step,
            size_bytes=found.size_bytes,
            read_s=found.read_s,
        )
        return [Decision(job_id, scrubbed)]
    corrupted = CheckpointCorrupted(
        job_id=job_id,
        attempt=step_id.attempt,
        step=step_id.step,
        key=found.key,
        reason=found.reason,
    )
    if isinstance(effect, Scrub):
        job = state.find(job_id) or Job()
        events = references.corrupted(job, corrupted)
        kept = references.after(job.kept, events)
        return [
            *(Decision(job_id, event) for event in events),
            *deletions(state, job_id, kept, except_job=""),
        ]
    return [
        Decision(job_id, corrupted),
        abandoned(reports, job_id, step_id, f"{found.key}: {found.reason}"),
    ]


def _commit(
    state: CheckpointState, reports: Reports, effect: Verify, verified: Verified, now: datetime
) -> list[Decision]:
    job_id, step_id = effect.job_id, effect.id
    job = state.jobs[job_id]
    if step_id.attempt != job.attempt:
        return [abandoned(reports, job_id, step_id, f"attempt {job.attempt} took over")]
    if job.newest is not None and step_id < job.newest:
        return [abandoned(reports, job_id, step_id, f"step {job.newest.step} is committed already")]
    problem = references.commit_problem(job, step_id, verified.refers)
    if problem is not None:
        return [abandoned(reports, job_id, step_id, problem)]
    metrics = merged_metrics(effect.shards)
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
        metrics=metrics,
    )
    older = [
        abandoned(reports, job_id, other, f"step {step_id.step} is committed already")
        for other in sorted(job.open)
        if other < step_id
    ]
    kept = [*job.kept, Kept(step_id, effect.world_size, metrics, refers=verified.refers)]
    return [
        Decision(job_id, committed),
        *advice.of_save(state, committed, now),
        *older,
        *deletions(state, job_id, kept, except_job=job_id, held_now=job.restored),
        *no_longer_held(state, job_id, job.resume),
    ]


def _deferred(effect: Effect, reason: str) -> Decision:
    kind: Literal["verify", "delete", "scrub"]
    kind, tries = "scrub", 0
    if not isinstance(effect, Scrub):
        kind, tries = "verify" if isinstance(effect, Verify) else "delete", effect.tries
    event = EffectDeferred(
        job_id=effect.job_id,
        attempt=effect.id.attempt,
        step=effect.id.step,
        effect=kind,
        tries=tries + 1,
        reason=reason,
    )
    return Decision(effect.job_id, event)
