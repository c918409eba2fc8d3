"""How an event of the own log changes the state."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Protocol

from gangline_bus.decision import Fold
from gangline_checkpoints.core import archive
from gangline_checkpoints.core.model import Job, Kept, Open, Scrub, StepId
from gangline_checkpoints.core.policy.interval import SAVES, Failures, Save
from gangline_checkpoints.core.policy.ranks import Runs, joined
from gangline_checkpoints.core.state import GRACE_S, CheckpointState, Stored
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic
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
    RegistrationNoted,
    RestoreNoted,
    ResumeNoted,
    ScrubBegun,
)
from gangline_schemas.events.scheduling import CheckpointRef
from gangline_schemas.memory import REMEMBERED, forget_old, keep_newest

CLOSED_STEPS = 64

fold: Fold[CheckpointState] = Fold(Topic.CHECKPOINTS)
"""How the events of gangline.checkpoints change the state, in place, within `apply`."""


class _OfStep(Protocol):
    """An event that is about one checkpoint."""

    @property
    def attempt(self) -> int: ...

    @property
    def step(self) -> int: ...


def apply(state: CheckpointState, event: Event, at: datetime) -> None:
    """Change the state by one event of the own log, decided `at` this time.

    1. Read an ended job back that the event is about, unless it is about a scrub.
    2. `fold`.
    3. Choose what to verify next; put away what is over, and forget what is old.
    """
    if isinstance(event, ScrubBegun | CheckpointScrubbed) or (
        isinstance(event, EffectDeferred) and event.effect == "scrub"
    ):
        fold(state, event, at)
        return
    job_id = getattr(event, "job_id", "")
    _take_up(state, job_id)
    fold(state, event, at)
    if job_id in state.jobs:
        _refresh(state, job_id)
        _put_away(state, job_id, at)
    _forget(state, at)


def try_out(state: CheckpointState, event: Event, at: datetime) -> CheckpointState:
    """`apply` on a branch: the event's job is copied, since the one below must not change."""
    job_id = getattr(event, "job_id", "")
    if job_id in state.jobs:
        state.jobs[job_id] = state.jobs[job_id].copied()
    apply(state, event, at)
    return state


def _take_up(state: CheckpointState, job_id: str) -> None:
    """Read an ended job back that an event is about."""
    line = state.archive.pop(job_id, None)
    if line is None:
        return
    if state.round[0] == job_id:
        state.round = ("", 0)
    job, verified_at = archive.read(job_id, line)
    state.jobs[job_id] = job
    for kept in job.kept:
        if kept.healthy:
            state.verified_at[(job_id, *kept.id)] = verified_at


def _put_away(state: CheckpointState, job_id: str, at: datetime) -> None:
    """Forget a job of which nothing came and nothing is kept; keep a line of one that is over."""
    job = state.jobs[job_id]
    if job.open or job_id in state.working or job_id in state.ending:
        return
    if not job.attempt:  # parts came, but no attempt ever did
        del state.jobs[job_id]
        state.active.pop(job_id, None)
    elif job.final and not _may_be_promoted(job):
        state.active.pop(job_id, None)
        healthy = [(job_id, *kept.id) for kept in job.kept if kept.healthy]
        if not job.kept:
            del state.jobs[job_id]
            state.ended[job_id] = at
        elif healthy:
            verified_at = min(state.verified_at.pop(place) for place in healthy)
            state.archive[job_id] = archive.written(job_id, job, verified_at)
            del state.jobs[job_id]


def _may_be_promoted(job: Job) -> bool:
    """Whether its last checkpoint will be asked to be validated, once the scheduler names it."""
    return job.succeeded and job.spec is not None and job.requested != job.newest


@fold.on(AttemptNoted)
def _(state: CheckpointState, event: AttemptNoted, _at: datetime) -> None:
    job = state.jobs.setdefault(event.job_id, Job())
    if event.world_size != job.world_size:
        job.saves = ()
    job.attempt, job.world_size = event.attempt, event.world_size
    job.allocated_at, job.advised_s, job.suspected_at = event.allocated_at, None, None
    job.prefix, job.keep, job.resume = event.prefix, event.keep, event.resume
    job.spec, job.validates = event.spec, event.validates
    job.full_every, job.cpu_only = event.full_every, event.cpu_only
    job.live, job.restored = True, None
    if event.resume is not None and event.resume.job_id == event.job_id:
        job.known = _place(event.resume)
    state.active[event.job_id] = None


@fold.on(AttemptEnded)
def _(state: CheckpointState, event: AttemptEnded, at: datetime) -> None:
    job = state.jobs[event.job_id]
    job.live, job.ended_at = False, at
    seen = Failures(float(event.failed), event.ran_s * job.world_size / 3600)
    job.failures, job.allocated_at = job.failures.plus(seen), None
    if not job.cpu_only:  # the rate is that of GPUs
        state.failures = state.failures.plus(seen)
    if event.final:
        job.final, job.resume, job.restored = True, None, None
        job.succeeded = event.succeeded
        state.ending[event.job_id] = at


def _place(point: CheckpointRef) -> StepId:
    return StepId(point.attempt, point.step)


def _step_id(event: _OfStep) -> StepId:
    return StepId(event.attempt, event.step)


@fold.on(CheckpointBegun)
def _(state: CheckpointState, event: CheckpointBegun, at: datetime) -> None:
    job, step_id = state.jobs.setdefault(event.job_id, Job()), _step_id(event)
    state.active[event.job_id] = None
    opened = job.open.get(step_id, Open(at))
    places = {event.partition: event.offset} | opened.places
    job.open[step_id] = replace(opened, places=places)


@fold.on(CheckpointSaved)
def _(state: CheckpointState, event: CheckpointSaved, _at: datetime) -> None:
    job, step_id = state.jobs[event.job_id], _step_id(event)
    job.open[step_id] = replace(job.open[step_id], saved=True)


@fold.on(CheckpointWritten)
def _(state: CheckpointState, event: CheckpointWritten, _at: datetime) -> None:
    job, step_id = state.jobs[event.job_id], _step_id(event)
    job.open[step_id] = replace(job.open[step_id], written=event.world_size)


@fold.on(CheckpointCommitted)
def _(state: CheckpointState, event: CheckpointCommitted, at: datetime) -> None:
    job, point = state.jobs[event.job_id], event.checkpoint
    step_id = _place(point)
    job.open.pop(step_id, None)
    job.kept.append(Kept(step_id, point.world_size, event.metrics, refers=event.refers))
    save = Save(event.blocked_s, event.write_s, event.verify_s)
    job.saves = (*job.saves, save)[-SAVES:]
    job.commits_since_request += 1
    if step_id.attempt == job.attempt:
        job.resume = None
    _set_verified(state, (point.job_id, *step_id), at)


@fold.on(CheckpointAbandoned)
def _(state: CheckpointState, event: CheckpointAbandoned, _at: datetime) -> None:
    job, step_id = state.jobs[event.job_id], _step_id(event)
    job.open.pop(step_id, None)
    _close(job, step_id, event.ranks)


@fold.on(CheckpointDeleted)
def _(state: CheckpointState, event: CheckpointDeleted, at: datetime) -> None:
    job, step_id = state.jobs[event.job_id], _step_id(event)
    size = _size_of(job, step_id)
    job.kept = [kept for kept in job.kept if kept.id != step_id]
    _close(job, step_id, ((0, size - 1),))
    _read_no_more(state, event, at)


@fold.on(CheckpointCorrupted)
def _(state: CheckpointState, event: CheckpointCorrupted, at: datetime) -> None:
    job = state.jobs[event.job_id]
    job.kept = job.kept_with(_step_id(event), healthy=False)
    _read_no_more(state, event, at)


@fold.on(ObjectsDeleted)
def _(state: CheckpointState, event: ObjectsDeleted, _at: datetime) -> None:
    state.jobs[event.job_id].deleting.pop(_step_id(event), None)


@fold.on(ResumeNoted)
def _(state: CheckpointState, event: ResumeNoted, _at: datetime) -> None:
    state.jobs[event.job_id].known = _place(event.checkpoint)


@fold.on(RestoreNoted)
def _(state: CheckpointState, event: RestoreNoted, _at: datetime) -> None:
    job = state.jobs[event.job_id]
    job.restored, job.known = event.checkpoint, _place(event.checkpoint)


@fold.on(IntervalAdvised)
def _(state: CheckpointState, event: IntervalAdvised, _at: datetime) -> None:
    job = state.jobs[event.job_id]
    job.advised_s, job.suspected_at = event.interval_s, event.suspected_at


@fold.on(CheckpointPinChanged)
def _(state: CheckpointState, event: CheckpointPinChanged, _at: datetime) -> None:
    job = state.jobs[event.job_id]
    job.kept = job.kept_with(_step_id(event), pinned=event.pinned)


@fold.on(RegistrationNoted)
def _(state: CheckpointState, event: RegistrationNoted, _at: datetime) -> None:
    if event.open:
        state.registering[event.registration] = (event.job_id, event.attempt, event.step)
        state.registration = event.registration
    else:
        state.registering.pop(event.registration, None)


@fold.on(PromotionRequested)
def _(state: CheckpointState, event: PromotionRequested, _at: datetime) -> None:
    step_id = _step_id(event)
    state.validating[event.run] = (event.job_id, *step_id)
    job = state.jobs.get(event.job_id)
    if job is not None:
        job.requested, job.commits_since_request = step_id, 0


@fold.on(CheckpointPromoted)
def _(state: CheckpointState, event: CheckpointPromoted, _at: datetime) -> None:
    _end_trial(state, event.run)
    job = state.jobs.get(event.job_id)
    if job is not None:
        job.kept = job.kept_with(_step_id(event), promoted=True)


@fold.on(PromotionRefused)
def _(state: CheckpointState, event: PromotionRefused, _at: datetime) -> None:
    _end_trial(state, event.run)


def _end_trial(state: CheckpointState, run_id: str) -> None:
    state.validating.pop(run_id, None)
    run = state.jobs.get(run_id)
    if run is not None:
        state.jobs[run_id] = replace(run, validates=None)


@fold.on(EffectDeferred)
def _(state: CheckpointState, event: EffectDeferred, at: datetime) -> None:
    match event.effect:
        case "scrub":
            _end_read(state, event, at, away=True)
        case "verify":
            state.jobs[event.job_id].verify_tries = event.tries
        case _:
            state.jobs[event.job_id].deleting[_step_id(event)] = event.tries


@fold.on(ScrubBegun)
def _(state: CheckpointState, event: ScrubBegun, _at: datetime) -> None:
    job, step_id = state.find(event.job_id) or Job(), _step_id(event)
    state.scrubbing = Scrub(event.job_id, job.prefix, step_id, _size_of(job, step_id))


@fold.on(CheckpointScrubbed)
def _(state: CheckpointState, event: CheckpointScrubbed, at: datetime) -> None:
    _end_read(state, event, at, away=False)


def _end_read(
    state: CheckpointState, event: CheckpointScrubbed | EffectDeferred, at: datetime, *, away: bool
) -> None:
    place = (event.job_id, *_step_id(event))
    if event.job_id == next(iter(state.archive), None):
        _change_round(state, event.job_id, at, away=away)
    elif not away:
        _set_verified(state, place, at)
    elif place in state.verified_at:  # perhaps it alone is unreadable: others come first
        state.verified_at[place] = state.verified_at.pop(place)
    _end_scrub(state, at, away=away)


def _change_round(state: CheckpointState, job_id: str, at: datetime, *, away: bool) -> None:
    """One more checkpoint of the ended job was read; after the last one others come first."""
    job, verified_at = archive.read(job_id, state.archive[job_id])
    done = state.round[1] + 1 if state.round[0] == job_id else 1
    if not away and done < sum(kept.healthy for kept in job.kept):
        state.round = (job_id, done)
        return
    del state.archive[job_id]
    state.archive[job_id] = archive.written(job_id, job, verified_at if away else at)
    state.round = ("", 0)


def _size_of(job: Job, step_id: StepId) -> int:
    return sum(kept.world_size for kept in job.kept if kept.id == step_id)


def _read_no_more(
    state: CheckpointState, event: CheckpointCorrupted | CheckpointDeleted, at: datetime
) -> None:
    """Limit `verified_at` to committed and healthy checkpoints, and end the scrub of any other."""
    place = (event.job_id, *_step_id(event))
    state.verified_at.pop(place, None)
    read = state.scrubbing
    if read is not None and (read.job_id, *read.id) == place:
        _end_scrub(state, at)


def _set_verified(state: CheckpointState, place: Stored, at: datetime) -> None:
    state.verified_at.pop(place, None)
    state.verified_at[place] = at


def _end_scrub(state: CheckpointState, at: datetime, *, away: bool = False) -> None:
    state.scrubbing, state.scrubbed_at, state.scrub_away = None, at, away


def _close(job: Job, step_id: StepId, ranks: Runs) -> None:
    job.closed[step_id] = joined(job.closed.get(step_id, ()), ranks)
    keep_newest(job.closed, CLOSED_STEPS)
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
    """Put ended jobs away after the grace. Forget by the rule those of which nothing is kept."""
    for job_id in list(islice(state.ending, 2)):
        if (at - state.ending[job_id]).total_seconds() < GRACE_S:
            break
        job = state.jobs[job_id]
        del state.ending[job_id]
        old = job.ended_at is not None and at - job.ended_at > REMEMBERED
        if job.open or job_id in state.working or (_may_be_promoted(job) and not old):
            state.ending[job_id] = at  # the store is away, or the scheduler behind: look again
            continue
        state.jobs[job_id] = replace(job, closed={}, spec=None)
        _put_away(state, job_id, at)
    forget_old(state.ended, lambda ended_at: ended_at, at)
