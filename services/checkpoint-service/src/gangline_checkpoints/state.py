"""The fold of gangline.checkpoints: what is open, what is kept, what is being deleted."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from datetime import datetime

from gangline_checkpoints.model import (
    Delete,
    Effect,
    Job,
    Kept,
    Open,
    StepId,
    Verify,
    delete_key,
    verify_key,
)
from gangline_schemas.base import Event
from gangline_schemas.events.checkpoints import (
    AttemptEnded,
    AttemptNoted,
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointDeleted,
    EffectDeferred,
    ObjectsDeleted,
    RestoreNoted,
    ShardRecorded,
)

GRACE_S = 600.0
"""How long parts of an ended or unknown attempt are waited for."""
CLOSED_STEPS = 64
ENDED_JOBS = 1000


@dataclass(slots=True)
class CheckpointState:
    """`active` are jobs that may still change; an ended job is there for its kept checkpoints.

    `ending` are ended jobs, oldest first, whose late parts are still waited for; `ended` is a
    bounded memory of jobs of which nothing is kept. `effects` follows from the rest.
    """

    jobs: dict[str, Job] = field(default_factory=dict)
    active: dict[str, None] = field(default_factory=dict)
    ending: dict[str, datetime] = field(default_factory=dict)
    ended: dict[str, None] = field(default_factory=dict)
    effects: dict[str, dict[str, Effect]] = field(default_factory=dict)

    def held(self, *, but_for: str = "") -> dict[str, set[StepId]]:
        """Checkpoints that unfinished jobs start from, by the job that owns them."""
        found: dict[str, set[StepId]] = {}
        for job_id in self.active:
            for start in (self.jobs[job_id].resume, self.jobs[job_id].restored):
                if start is not None and job_id != but_for:
                    found.setdefault(start.job_id, set()).add(StepId(start.attempt, start.step))
        return found


def apply(state: CheckpointState, event: Event, at: datetime) -> None:
    """Change the state by one event of the own log, decided `at` this time."""
    match event:
        case AttemptNoted():
            _note_attempt(state, event)
            job_id = event.job_id
        case AttemptEnded():
            _end_attempt(state, event, at)
            job_id = event.job_id
        case RestoreNoted():
            state.jobs[event.job_id].restored = event.checkpoint
            job_id = event.job_id
        case ShardRecorded():
            _record(state, event, at)
            job_id = event.shard.job_id
        case (
            CheckpointCommitted()
            | CheckpointAbandoned()
            | CheckpointCorrupted()
            | CheckpointDeleted()
            | ObjectsDeleted()
            | EffectDeferred()
        ):
            _change_step(state.jobs[event.job_id], event)
            job_id = event.job_id
        case _:
            return  # a type of a later version: it changes nothing here
    _refresh(state, job_id)
    job = state.jobs[job_id]
    if not job.attempt and not job.open:  # parts came, but no attempt ever did
        del state.jobs[job_id]
        state.active.pop(job_id, None)
    _forget(state, at)


def _note_attempt(state: CheckpointState, event: AttemptNoted) -> None:
    job = state.jobs.setdefault(event.job_id, Job())
    job.attempt, job.world_size = event.attempt, event.world_size
    job.prefix, job.keep, job.resume = event.prefix, event.keep, event.resume
    job.live, job.restored = True, None
    state.active[event.job_id] = None


def _end_attempt(state: CheckpointState, event: AttemptEnded, at: datetime) -> None:
    job = state.jobs[event.job_id]
    job.live, job.ended_at = False, at
    if event.final:
        job.final, job.resume, job.restored = True, None, None
        state.ending[event.job_id] = at


def _record(state: CheckpointState, event: ShardRecorded, at: datetime) -> None:
    shard = event.shard
    job = state.jobs.get(shard.job_id)
    if job is None:
        job = state.jobs[shard.job_id] = Job()
        state.active[shard.job_id] = None
    opened = job.open.setdefault(StepId(shard.attempt, shard.step), Open(at))
    opened.shards[shard.rank] = shard


def _change_step(
    job: Job,
    event: CheckpointCommitted
    | CheckpointAbandoned
    | CheckpointCorrupted
    | CheckpointDeleted
    | ObjectsDeleted
    | EffectDeferred,
) -> None:
    if isinstance(event, CheckpointCommitted):
        step_id = StepId(event.checkpoint.attempt, event.checkpoint.step)
        job.open.pop(step_id, None)
        job.kept.append(Kept(step_id, event.checkpoint.world_size, event.metrics))
        if step_id.attempt == job.attempt:
            job.resume = None
        return
    step_id = StepId(event.attempt, event.step)
    match event:
        case CheckpointAbandoned():
            opened = job.open.pop(step_id, None)
            _close(job, step_id, frozenset() if opened is None else frozenset(opened.shards))
        case CheckpointDeleted():
            gone = [kept for kept in job.kept if kept.id == step_id]
            job.kept = [kept for kept in job.kept if kept.id != step_id]
            _close(job, step_id, frozenset(range(sum(kept.world_size for kept in gone))))
        case CheckpointCorrupted():
            job.kept = [
                replace(kept, healthy=False) if kept.id == step_id else kept for kept in job.kept
            ]
        case ObjectsDeleted():
            job.deleting.pop(step_id, None)
        case EffectDeferred(effect="verify"):
            job.verify_tries = event.tries
        case EffectDeferred():
            job.deleting[step_id] = event.tries


def _close(job: Job, step_id: StepId, ranks: frozenset[int]) -> None:
    job.closed[step_id] = job.closed.get(step_id, frozenset()) | ranks
    while len(job.closed) > CLOSED_STEPS:
        del job.closed[next(iter(job.closed))]
    if job.prefix:
        # Counting on makes it a new effect even while an earlier deletion is at work, which may
        # have listed the objects before the late one came.
        job.deleting[step_id] = job.deleting.get(step_id, -1) + 1


def _refresh(state: CheckpointState, job_id: str) -> None:
    """Choose what to verify next, and bring the job's effects up to date."""
    job = state.jobs[job_id]
    if job.verifying is not None and job.verifying not in job.open:
        job.verifying, job.verify_tries = None, 0
    if job.verifying is None and job.attempt:
        job.verifying = min(
            (
                step_id
                for step_id, opened in job.open.items()
                if step_id.attempt == job.attempt
                and step_id not in job.closed
                and opened.complete(job.world_size)
            ),
            default=None,
        )
    old = state.effects.pop(job_id, {})
    wanted: dict[str, Effect] = {}
    if job.verifying is not None:
        key = verify_key(job_id, job.verifying, job.verify_tries)
        wanted[key] = old.get(key) or _verify(job_id, job, job.verifying)
    for step_id, tries in sorted(job.deleting.items()):
        wanted[delete_key(job_id, step_id, tries)] = Delete(job_id, job.prefix, step_id, tries)
    if wanted:
        state.effects[job_id] = wanted


def _verify(job_id: str, job: Job, step_id: StepId) -> Verify:
    shards = tuple(shard for _, shard in sorted(job.open[step_id].shards.items()))
    return Verify(job_id, job.prefix, step_id, len(shards), shards, job.verify_tries)


def _forget(state: CheckpointState, at: datetime) -> None:
    """Drop what can no longer change: unknown jobs without parts, ended jobs after the grace."""
    for job_id in list(state.ending)[:2]:
        if (at - state.ending[job_id]).total_seconds() < GRACE_S:
            break
        job = state.jobs[job_id]
        del state.ending[job_id]
        if job.open or job.deleting:
            state.ending[job_id] = at  # the store is away: look again later
            continue
        job.closed = {}
        state.active.pop(job_id, None)
        if not job.kept:
            _drop(state, job_id)


def _drop(state: CheckpointState, job_id: str) -> None:
    del state.jobs[job_id]
    state.active.pop(job_id, None)
    state.ended[job_id] = None
    while len(state.ended) > ENDED_JOBS:
        del state.ended[next(iter(state.ended))]


def fingerprint(state: CheckpointState) -> str:
    """sha256 over the state: equal for a replay of the same log."""
    content = {
        "jobs": {job_id: _job(job) for job_id, job in state.jobs.items()},
        "active": sorted(state.active),
        "ending": [[job_id, at.isoformat()] for job_id, at in state.ending.items()],
        "ended": list(state.ended),
        "effects": sorted(key for wanted in state.effects.values() for key in wanted),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _job(job: Job) -> list[object]:
    return [
        [job.attempt, job.world_size, job.prefix, job.live, job.final, job.keep.data()],
        None if job.resume is None else job.resume.data(),
        None if job.restored is None else job.restored.data(),
        None if job.ended_at is None else job.ended_at.isoformat(),
        [
            [
                *step_id,
                opened.opened_at.isoformat(),
                [opened.shards[rank].data() for rank in sorted(opened.shards)],
            ]
            for step_id, opened in sorted(job.open.items())
        ],
        [[*kept.id, kept.healthy, dict(sorted(kept.metrics.items()))] for kept in job.kept],
        [job.verifying, job.verify_tries],
        [[*step_id, tries] for step_id, tries in sorted(job.deleting.items())],
        [[*step_id, sorted(ranks)] for step_id, ranks in job.closed.items()],
    ]
