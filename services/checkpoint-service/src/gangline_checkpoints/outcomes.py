"""Decisions about performed effects: commit, abandon, try again."""

from __future__ import annotations

from typing import Literal

from gangline_bus.decision import Decision, EffectDone
from gangline_checkpoints.attempts import abandoned, deletions, no_longer_held
from gangline_checkpoints.model import (
    Away,
    Corrupt,
    Effect,
    Kept,
    Refused,
    Removed,
    Verified,
    Verify,
    merged_metrics,
)
from gangline_checkpoints.state import CheckpointState
from gangline_schemas.checkpoint import commit_key
from gangline_schemas.events.checkpoints import (
    CheckpointCommitted,
    CheckpointCorrupted,
    EffectDeferred,
    ObjectsDeleted,
)
from gangline_schemas.events.scheduling import CheckpointRef


def decide(state: CheckpointState, done: EffectDone) -> list[Decision]:
    """What follows from an outcome; [] when the state no longer asks for that effect."""
    job_id = done.key.split(":")[1]
    effect = state.effects.get(job_id, {}).get(done.key)
    if effect is None:
        return []
    match done.result:
        case Away(reason):
            return [_deferred(effect, reason)]
        case Removed():
            gone = ObjectsDeleted(job_id=job_id, attempt=effect.id.attempt, step=effect.id.step)
            return [Decision(job_id, gone)]
        case Corrupt(key, reason):
            corrupted = CheckpointCorrupted(
                job_id=job_id,
                attempt=effect.id.attempt,
                step=effect.id.step,
                key=key,
                reason=reason,
            )
            return [
                Decision(job_id, corrupted),
                abandoned(job_id, effect.id, f"{key}: {reason}"),
            ]
        case Refused(reason):
            return [abandoned(job_id, effect.id, reason)]
        case Verified() if isinstance(effect, Verify):
            return _commit(state, effect, done.result)
        case _:
            raise TypeError(f"{done.key}: {type(done.result).__name__} is no outcome of it")


def _commit(state: CheckpointState, effect: Verify, verified: Verified) -> list[Decision]:
    job_id, step_id = effect.job_id, effect.id
    job = state.jobs[job_id]
    if step_id.attempt != job.attempt:
        return [abandoned(job_id, step_id, f"attempt {job.attempt} took over")]
    if job.newest is not None and step_id < job.newest:
        return [abandoned(job_id, step_id, f"step {job.newest.step} is committed already")]
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
        write_s=max(shard.write_s for shard in effect.shards),
        blocked_s=max(shard.blocked_s for shard in effect.shards),
        verify_s=verified.verify_s,
        metrics=metrics,
    )
    older = [
        abandoned(job_id, other, f"step {step_id.step} is committed already")
        for other in sorted(job.open)
        if other < step_id
    ]
    kept = [*job.kept, Kept(step_id, effect.world_size, metrics)]
    return [
        Decision(job_id, committed),
        *older,
        *deletions(state, job_id, kept, but_for=job_id, held_now=job.restored),
        *no_longer_held(state, job_id, job.resume),
    ]


def _deferred(effect: Effect, reason: str) -> Decision:
    kind: Literal["verify", "delete"] = "verify" if isinstance(effect, Verify) else "delete"
    event = EffectDeferred(
        job_id=effect.job_id,
        attempt=effect.id.attempt,
        step=effect.id.step,
        effect=kind,
        tries=effect.tries + 1,
        reason=reason,
    )
    return Decision(effect.job_id, event)
