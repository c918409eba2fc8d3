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
    Scrub,
    StepId,
    Verify,
    Work,
    delete_key,
    scrub_key,
    verify_key,
)
from gangline_checkpoints.policy.interval import SAVES, Failures, Save
from gangline_checkpoints.policy.ranks import Runs, joined
from gangline_checkpoints.reports import Reports
from gangline_schemas.base import Event
from gangline_schemas.events.checkpoints import (
    AttemptEnded,
    AttemptNoted,
    CheckpointAbandoned,
    CheckpointBegun,
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointDeleted,
    CheckpointPinChanged,
    CheckpointPromoted,
    CheckpointSaved,
    CheckpointScrubbed,
    CheckpointWritten,
    EffectDeferred,
    IntervalAdvised,
    ObjectsDeleted,
    PromotionRefused,
    PromotionRequested,
    RestoreNoted,
    ResumeNoted,
    ScrubBegun,
)
from gangline_schemas.events.scheduling import CheckpointRef

GRACE_S = 600.0
"""How long parts of an ended or unknown attempt are waited for."""
Stored = tuple[str, int, int]
"""Job, attempt and step of a committed checkpoint."""
CLOSED_STEPS = 64
ENDED_JOBS = 1000


@dataclass(slots=True)
class CheckpointState:
    """`active` are jobs that may still change; an ended job is there for its kept checkpoints.

    `ending` are ended jobs, oldest first, whose late parts are still waited for; `ended` is a
    bounded memory of jobs of which nothing is kept.

    `right` says of each healthy committed checkpoint when all its bytes were found right, oldest
    first, but for what could not be read, which goes to the end. One at a time is read again
    (`scrubbing`); `scrubbed_at` is when the last one ended, `scrub_away` whether because the store
    was away. `failures` are those of all jobs.

    `trying` are the checkpoints that were asked to be validated, by the run that shall do it.

    `working` are the jobs with something to verify or to delete. `reports` are soft: no part of the
    log, and none of the fingerprint.
    """

    jobs: dict[str, Job] = field(default_factory=dict)
    active: dict[str, None] = field(default_factory=dict)
    ending: dict[str, datetime] = field(default_factory=dict)
    ended: dict[str, None] = field(default_factory=dict)
    working: dict[str, None] = field(default_factory=dict)
    right: dict[Stored, datetime] = field(default_factory=dict)
    scrubbing: Scrub | None = None
    scrubbed_at: datetime | None = None
    scrub_away: bool = False
    failures: Failures = field(default_factory=Failures)
    trying: dict[str, Stored] = field(default_factory=dict)
    reports: Reports = field(default_factory=Reports)

    def effect(self, key: str) -> Effect | None:
        """What is asked for under this key."""
        read = self.scrubbing
        if read is not None and key == scrub_key(read.job_id, read.id):
            return read
        return self._works(key.split(":")[1]).get(key)

    def wanted(self) -> dict[str, Effect]:
        """All effects, by key."""
        found: dict[str, Effect] = {}
        for job_id in self.working:
            found |= self._works(job_id)
        if self.scrubbing is not None:
            found[scrub_key(self.scrubbing.job_id, self.scrubbing.id)] = self.scrubbing
        return found

    def _works(self, job_id: str) -> dict[str, Work]:
        """What is to be done for a job. A verification waits until its parts are known again."""
        job = self.jobs.get(job_id)
        found: dict[str, Work] = {}
        if job is None:
            return found
        if job.verifying is not None:
            reported = self.reports.of(job_id, job.verifying)
            if reported.complete(job.open[job.verifying].written):
                shards = reported.by_rank()
                key = verify_key(job_id, job.verifying, job.verify_tries)
                found[key] = Verify(
                    job_id, job.prefix, job.verifying, len(shards), shards, job.verify_tries
                )
        if job.deleting:  # one at a time: a slow store must not keep verifications waiting for many
            step_id, tries = min(job.deleting.items())
            found[delete_key(job_id, step_id, tries)] = Delete(job_id, job.prefix, step_id, tries)
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
        case CheckpointBegun() | CheckpointSaved() | CheckpointWritten():
            _change_open(state, event, at)
            job_id = event.job_id
        case ResumeNoted() | IntervalAdvised() | CheckpointPinChanged():
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
            _change_step(state, state.jobs[event.job_id], event)
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
    job.live, job.restored = True, None
    if event.resume is not None and event.resume.job_id == event.job_id:
        job.known = _place(event.resume)
    state.active[event.job_id] = None


def _end_attempt(state: CheckpointState, event: AttemptEnded, at: datetime) -> None:
    job = state.jobs[event.job_id]
    job.live, job.ended_at = False, at
    seen = Failures(float(event.failed), event.ran_s * job.world_size / 3600)
    job.failures, job.allocated_at = job.failures.plus(seen), None
    state.failures = state.failures.plus(seen)
    if event.final:
        job.final, job.resume, job.restored = True, None, None
        job.succeeded = event.succeeded
        state.ending[event.job_id] = at


def _place(point: CheckpointRef) -> StepId:
    return StepId(point.attempt, point.step)


def _change_open(
    state: CheckpointState,
    event: CheckpointBegun | CheckpointSaved | CheckpointWritten,
    at: datetime,
) -> None:
    job_id, step_id = event.job_id, StepId(event.attempt, event.step)
    if isinstance(event, CheckpointBegun):
        job = state.jobs.setdefault(job_id, Job())
        state.active[job_id] = None
        opened = job.open.get(step_id, Open(at))
        places = {event.partition: event.offset} | opened.places
        job.open[step_id] = replace(opened, places=places)
        return
    job = state.jobs[job_id]
    opened = job.open[step_id]
    if isinstance(event, CheckpointSaved):
        job.open[step_id] = replace(opened, saved=True)
    else:
        job.open[step_id] = replace(opened, written=event.world_size)


def _change_step(
    state: CheckpointState,
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
        state.reports.forget(event.job_id, step_id)
        point = event.checkpoint
        job.kept.append(Kept(step_id, point.world_size, event.metrics, refers=event.refers))
        save = Save(event.blocked_s, event.write_s, event.verify_s)
        job.saves = (*job.saves, save)[-SAVES:]
        job.unasked += 1
        if step_id.attempt == job.attempt:
            job.resume = None
        return
    step_id = StepId(event.attempt, event.step)
    match event:
        case CheckpointAbandoned():
            job.open.pop(step_id, None)
            state.reports.forget(event.job_id, step_id)
            state.reports.late.pop((event.job_id, step_id), None)
            _close(job, step_id, event.ranks)
        case CheckpointDeleted():
            size = _size_of(job, step_id)
            job.kept = [kept for kept in job.kept if kept.id != step_id]
            _close(job, step_id, ((0, size - 1),))
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
    event: ResumeNoted | IntervalAdvised | CheckpointPinChanged,
) -> None:
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


def _close(job: Job, step_id: StepId, ranks: Runs) -> None:
    job.closed[step_id] = joined(job.closed.get(step_id, ()), ranks)
    while len(job.closed) > CLOSED_STEPS:
        del job.closed[next(iter(job.closed))]
    if job.prefix:
        # Counting on makes it a new effect even while an earlier deletion is at work, which may
        # have listed the objects before the late one came.
        job.deleting[step_id] = job.deleting.get(step_id, -1) + 1


def _refresh(state: CheckpointState, job_id: str) -> None:
    """Choose what to verify next, and note whether the job has something to do."""
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
                and opened.written > 0
            ),
            default=None,
        )
    if job.verifying is None and not job.deleting:
        state.working.pop(job_id, None)
    else:
        state.working[job_id] = None


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
        "working": list(state.working),
        "scrubbing": None
        if state.scrubbing is None
        else [state.scrubbing.job_id, *state.scrubbing.id],
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
                sorted(opened.places.items()),
                [opened.saved, opened.written],
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
        [[*step_id, ranks] for step_id, ranks in job.closed.items()],
    ]
