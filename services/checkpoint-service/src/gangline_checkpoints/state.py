"""The fold of gangline.checkpoints: what is open, what is kept, what is being deleted."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime

from gangline_checkpoints.model import (
    Delete,
    Effect,
    Job,
    Kept,
    Open,
    Scrub,
    StepId,
    Verify,
    Work,
    delete_key,
    scrub_key,
    verify_key,
)
from gangline_checkpoints.policy.interval import SAVES, Failures, Save
from gangline_schemas.base import Event
from gangline_schemas.events.checkpoints import (
    AttemptEnded,
    AttemptNoted,
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointDeleted,
    CheckpointPinChanged,
    CheckpointPromoted,
    CheckpointScrubbed,
    EffectDeferred,
    IntervalAdvised,
    NodeSaveRecorded,
    ObjectsDeleted,
    PromotionRefused,
    PromotionRequested,
    RestoreNoted,
    ResumeNoted,
    ScrubBegun,
    ShardRecorded,
)
from gangline_schemas.events.scheduling import CheckpointRef
from gangline_schemas.events.workers import NodeSaved

GRACE_S = 600.0
"""How long parts of an ended or unknown attempt are waited for."""
Stored = tuple[str, int, int]
"""Job, attempt and step of a committed checkpoint."""
CLOSED_STEPS = 64
STEPS_ON_NODES = 16
ENDED_JOBS = 1000


@dataclass(slots=True)
class CheckpointState:
    """`active` are jobs that may still change; an ended job is there for its kept checkpoints.

    `ending` are ended jobs, oldest first, whose late parts are still waited for; `ended` is a
    bounded memory of jobs of which nothing is kept. `effects` follows from the rest.

    `right` says of each healthy committed checkpoint when all its bytes were found right, oldest
    first, but for what could not be read, which goes to the end. One at a time is read again
    (`scrubbing`); `scrubbed_at` is when the last one ended, `scrub_away` whether because the store
    was away. `failures` are those of all jobs.

    `trying` are the checkpoints that were asked to be validated, by the run that shall do it.
    """

    jobs: dict[str, Job] = field(default_factory=dict)
    active: dict[str, None] = field(default_factory=dict)
    ending: dict[str, datetime] = field(default_factory=dict)
    ended: dict[str, None] = field(default_factory=dict)
    effects: dict[str, dict[str, Work]] = field(default_factory=dict)
    right: dict[Stored, datetime] = field(default_factory=dict)
    scrubbing: Scrub | None = None
    scrubbed_at: datetime | None = None
    scrub_away: bool = False
    failures: Failures = field(default_factory=Failures)
    trying: dict[str, Stored] = field(default_factory=dict)

    def effect(self, key: str) -> Effect | None:
        """What is asked for under this key."""
        read = self.scrubbing
        if read is not None and key == scrub_key(read.job_id, read.id):
            return read
        return self.effects.get(key.split(":")[1], {}).get(key)

    def wanted(self) -> dict[str, Effect]:
        """All effects, by key."""
        found: dict[str, Effect] = {}
        for wanted in self.effects.values():
            found |= wanted
        if self.scrubbing is not None:
            found[scrub_key(self.scrubbing.job_id, self.scrubbing.id)] = self.scrubbing
        return found

    def held(self, *, but_for: str = "") -> dict[str, set[StepId]]:
        """Checkpoints that unfinished jobs start from or validate, by the job that owns them."""
        found: dict[str, set[StepId]] = {}
        for job_id in self.active:
            job = self.jobs[job_id]
            for start in (job.resume, job.restored, job.validates):
                if start is not None and job_id != but_for:
                    found.setdefault(start.job_id, set()).add(StepId(start.attempt, start.step))
        for run, (owner, attempt, step) in self.trying.items():
            if run != but_for:
                found.setdefault(owner, set()).add(StepId(attempt, step))
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
            job = state.jobs[event.job_id]
            job.restored, job.known = event.checkpoint, _place(event.checkpoint)
            job_id = event.job_id
        case ShardRecorded():
            _record(state, event, at)
            job_id = event.shard.job_id
        case ResumeNoted() | IntervalAdvised() | CheckpointPinChanged() | NodeSaveRecorded():
            _change_job(state, event)
            return
        case PromotionRequested() | CheckpointPromoted() | PromotionRefused():
            _change_promotion(state, event)
            return
        case ScrubBegun() | CheckpointScrubbed() | EffectDeferred(effect="scrub"):
            _change_scrub(state, event, at)
            return
        case (
            CheckpointCommitted()
            | CheckpointAbandoned()
            | CheckpointCorrupted()
            | CheckpointDeleted()
            | ObjectsDeleted()
            | EffectDeferred()
        ):
            _change_step(state.jobs[event.job_id], event)
            _change_right(state, event, at)
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
    if event.world_size != job.world_size:
        job.saves = ()
    job.attempt, job.world_size = event.attempt, event.world_size
    job.allocated_at, job.advised_s, job.suspected_at = event.allocated_at, None, None
    job.prefix, job.keep, job.resume = event.prefix, event.keep, event.resume
    job.spec, job.validates = event.spec, event.validates
    job.full_every = event.full_every
    job.live, job.restored, job.on_nodes = True, None, {}
    if event.resume is not None and event.resume.job_id == event.job_id:
        job.known = _place(event.resume)
    state.active[event.job_id] = None


def _end_attempt(state: CheckpointState, event: AttemptEnded, at: datetime) -> None:
    job = state.jobs[event.job_id]
    job.live, job.ended_at, job.on_nodes = False, at, {}
    seen = Failures(float(event.failed), event.ran_s * job.world_size / 3600)
    job.failures, job.allocated_at = job.failures.plus(seen), None
    state.failures = state.failures.plus(seen)
    if event.final:
        job.final, job.resume, job.restored = True, None, None
        job.succeeded = event.succeeded
        state.ending[event.job_id] = at


def _place(point: CheckpointRef) -> StepId:
    return StepId(point.attempt, point.step)


def _record(state: CheckpointState, event: ShardRecorded, at: datetime) -> None:
    shard = event.shard
    job = state.jobs.get(shard.job_id)
    if job is None:
        job = state.jobs[shard.job_id] = Job()
        state.active[shard.job_id] = None
    opened = job.open.setdefault(StepId(shard.attempt, shard.step), Open(at))
    opened.shards[shard.rank] = shard


def _record_on_node(job: Job, saved: NodeSaved) -> None:
    job.on_nodes[saved.step] = job.on_nodes.get(saved.step, frozenset()).union(saved.ranks)
    while len(job.on_nodes) > STEPS_ON_NODES:
        del job.on_nodes[min(job.on_nodes)]


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
        point = event.checkpoint
        job.kept.append(Kept(step_id, point.world_size, event.metrics, refers=event.refers))
        save = Save(event.blocked_s, event.write_s, event.verify_s)
        job.saves = (*job.saves, save)[-SAVES:]
        job.unasked += 1
        job.on_nodes = {step: on for step, on in job.on_nodes.items() if step > step_id.step}
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
            job.kept = job.kept_with(step_id, healthy=False)
        case ObjectsDeleted():
            job.deleting.pop(step_id, None)
        case EffectDeferred(effect="verify"):
            job.verify_tries = event.tries
        case EffectDeferred():
            job.deleting[step_id] = event.tries


def _change_job(
    state: CheckpointState,
    event: ResumeNoted | IntervalAdvised | CheckpointPinChanged | NodeSaveRecorded,
) -> None:
    if isinstance(event, NodeSaveRecorded):
        _record_on_node(state.jobs[event.saved.job_id], event.saved)
        return
    job = state.jobs[event.job_id]
    match event:
        case ResumeNoted():
            job.known = _place(event.checkpoint)
        case IntervalAdvised():
            job.advised_s, job.suspected_at = event.interval_s, event.suspected_at
        case CheckpointPinChanged():
            job.kept = job.kept_with(StepId(event.attempt, event.step), pinned=event.pinned)


def _change_promotion(
    state: CheckpointState, event: PromotionRequested | CheckpointPromoted | PromotionRefused
) -> None:
    job, step_id = state.jobs.get(event.job_id), StepId(event.attempt, event.step)
    if isinstance(event, PromotionRequested):
        state.trying[event.run] = (event.job_id, *step_id)
        if job is not None:
            job.asked, job.unasked = step_id, 0
        return
    state.trying.pop(event.run, None)
    run = state.jobs.get(event.run)
    if run is not None:
        run.validates = None
    if job is not None and isinstance(event, CheckpointPromoted):
        job.kept = job.kept_with(step_id, promoted=True)


def _change_scrub(
    state: CheckpointState, event: ScrubBegun | CheckpointScrubbed | EffectDeferred, at: datetime
) -> None:
    step_id = StepId(event.attempt, event.step)
    if isinstance(event, ScrubBegun):
        job = state.jobs[event.job_id]
        state.scrubbing = Scrub(event.job_id, job.prefix, step_id, _size_of(job, step_id))
        return
    place = (event.job_id, *step_id)
    if isinstance(event, CheckpointScrubbed):
        _found_right(state, place, at)
    elif place in state.right:  # it alone may be what the store does not give: others come first
        state.right[place] = state.right.pop(place)
    _end_scrub(state, at, away=isinstance(event, EffectDeferred))


def _size_of(job: Job, step_id: StepId) -> int:
    return sum(kept.world_size for kept in job.kept if kept.id == step_id)


def _change_right(state: CheckpointState, event: Event, at: datetime) -> None:
    """Keep `right` to what is committed and healthy, and let go of what is read for nothing."""
    match event:
        case CheckpointCommitted(checkpoint=ref):
            _found_right(state, (ref.job_id, ref.attempt, ref.step), at)
        case CheckpointCorrupted() | CheckpointDeleted():
            state.right.pop((event.job_id, event.attempt, event.step), None)
            read = state.scrubbing
            if read is not None and (read.job_id, *read.id) == (
                event.job_id, event.attempt, event.step,
            ):  # fmt: skip
                _end_scrub(state, at)


def _found_right(state: CheckpointState, place: Stored, at: datetime) -> None:
    state.right.pop(place, None)
    state.right[place] = at


def _end_scrub(state: CheckpointState, at: datetime, *, away: bool = False) -> None:
    state.scrubbing, state.scrubbed_at, state.scrub_away = None, at, away


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
    wanted: dict[str, Work] = {}
    if job.verifying is not None:
        key = verify_key(job_id, job.verifying, job.verify_tries)
        wanted[key] = old.get(key) or _verify(job_id, job, job.verifying)
    if job.deleting:  # one at a time: a slow store must not keep verifications waiting for many
        step_id, tries = min(job.deleting.items())
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
        "effects": sorted(state.wanted()),
        "right": [[*place, at.isoformat()] for place, at in state.right.items()],
        "scrubbed": [_iso(state.scrubbed_at), state.scrub_away],
        "trying": sorted(state.trying.items()),
        "failures": [state.failures.count, state.failures.gpu_hours],
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _job(job: Job) -> list[object]:
    return [
        [job.attempt, job.world_size, job.prefix, job.live, job.final, job.keep.data()],
        job.full_every,
        None if job.resume is None else job.resume.data(),
        [None if job.restored is None else job.restored.data(), job.known],
        [_iso(job.ended_at), _iso(job.allocated_at)],
        [job.saves, job.failures.count, job.failures.gpu_hours, job.advised_s],
        [
            [
                *step_id,
                opened.opened_at.isoformat(),
                [opened.shards[rank].data() for rank in sorted(opened.shards)],
            ]
            for step_id, opened in sorted(job.open.items())
        ],
        [
            [
                *kept.id,
                kept.healthy,
                kept.promoted,
                kept.pinned,
                dict(sorted(kept.metrics.items())),
                kept.refers,
            ]
            for kept in job.kept
        ],
        [job.spec is not None, job.succeeded, job.unasked, job.asked],
        None if job.validates is None else job.validates.data(),
        [job.verifying, job.verify_tries],
        [[*step_id, tries] for step_id, tries in sorted(job.deleting.items())],
        [[*step_id, sorted(ranks)] for step_id, ranks in job.closed.items()],
        [[step, sorted(ranks)] for step, ranks in job.on_nodes.items()],
    ]
