"""How an event of the own log changes the state."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from itertools import islice

from gangline_checkpoints import archive
from gangline_checkpoints.model import Job, Kept, Open, Scrub, StepId
from gangline_checkpoints.policy.interval import SAVES, Failures, Save
from gangline_checkpoints.policy.ranks import Runs, joined
from gangline_checkpoints.state import GRACE_S, CheckpointState, Stored
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
from gangline_schemas.memory import REMEMBERED, forget_old

CLOSED_STEPS = 64


def apply(state: CheckpointState, event: Event, at: datetime) -> None:
    """Change the state by one event of the own log, decided `at` this time."""
    if isinstance(event, ScrubBegun | CheckpointScrubbed) or (
        isinstance(event, EffectDeferred) and event.effect == "scrub"
    ):
        _change_scrub(state, event, at)
        return
    job_id = getattr(event, "job_id", "")
    _take_up(state, job_id)
    _change(state, event, at)
    if job_id in state.jobs:
        _refresh(state, job_id)
        _put_away(state, job_id, at)
    _forget(state, at)


def _change(state: CheckpointState, event: Event, at: datetime) -> None:
    match event:
        case AttemptNoted():
            _note_attempt(state, event)
        case AttemptEnded():
            _end_attempt(state, event, at)
        case CheckpointBegun() | CheckpointSaved() | CheckpointWritten():
            _change_open(state, event, at)
        case ResumeNoted() | RestoreNoted() | IntervalAdvised() | CheckpointPinChanged():
            _change_job(state.jobs[event.job_id], event)
        case PromotionRequested() | CheckpointPromoted() | PromotionRefused():
            _change_promotion(state, event)
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
        case _:
            pass  # a type of a later version: it changes nothing here


def _take_up(state: CheckpointState, job_id: str) -> None:
    """Read an ended job back that an event is about."""
    line = state.archive.pop(job_id, None)
    if line is None:
        return
    if state.round[0] == job_id:
        state.round = ("", 0)
    job, right_at = archive.read(job_id, line)
    state.jobs[job_id] = job
    for kept in job.kept:
        if kept.healthy:
            state.right[(job_id, *kept.id)] = right_at


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
            right_at = min(state.right.pop(place) for place in healthy)
            state.archive[job_id] = archive.written(job_id, job, right_at)
            del state.jobs[job_id]


def _may_be_promoted(job: Job) -> bool:
    """Whether its last checkpoint will be asked to be validated, once the scheduler names it."""
    return job.succeeded and job.spec is not None and job.asked != job.newest


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
    job: Job, event: ResumeNoted | RestoreNoted | IntervalAdvised | CheckpointPinChanged
) -> None:
    match event:
        case ResumeNoted():
            job.known = _place(event.checkpoint)
        case RestoreNoted():
            job.restored, job.known = event.checkpoint, _place(event.checkpoint)
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
    job_id, step_id = event.job_id, StepId(event.attempt, event.step)
    if isinstance(event, ScrubBegun):
        job = state.find(job_id) or Job()
        state.scrubbing = Scrub(job_id, job.prefix, step_id, _size_of(job, step_id))
        return
    place = (job_id, *step_id)
    if job_id == next(iter(state.archive), None):
        _change_round(state, job_id, at, away=isinstance(event, EffectDeferred))
    elif isinstance(event, CheckpointScrubbed):
        _found_right(state, place, at)
    elif place in state.right:  # it alone may be what the store does not give: others come first
        state.right[place] = state.right.pop(place)
    _end_scrub(state, at, away=isinstance(event, EffectDeferred))


def _change_round(state: CheckpointState, job_id: str, at: datetime, *, away: bool) -> None:
    """One more checkpoint of the ended job was read; after the last one others come first."""
    job, right_at = archive.read(job_id, state.archive[job_id])
    done = state.round[1] + 1 if state.round[0] == job_id else 1
    if not away and done < sum(kept.healthy for kept in job.kept):
        state.round = (job_id, done)
        return
    del state.archive[job_id]
    state.archive[job_id] = archive.written(job_id, job, right_at if away else at)
    state.round = ("", 0)


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
        job.closed, job.spec = {}, None
        _put_away(state, job_id, at)
    forget_old(state.ended, lambda ended_at: ended_at, at)
