"""The fold: the state after each event of gangline.studies."""

from __future__ import annotations

from bisect import bisect_left
from datetime import datetime
from typing import Any

from gangline_bus.decision import Fold
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import request_key
from gangline_schemas.events.studies import (
    StudyCreated,
    StudyEnded,
    StudyEnding,
    StudyRefused,
    TrialCharged,
    TrialCompleted,
    TrialExited,
    TrialFailed,
    TrialFailure,
    TrialJobEnded,
    TrialJobRequested,
    TrialJobStopRequested,
    TrialLogsRead,
    TrialMeasured,
    TrialPaused,
    TrialPromoted,
    TrialProposed,
    TrialPruned,
    TrialSaved,
    TrialSaveLost,
    TrialSaving,
    TrialStarted,
    TrialWithdrawn,
)
from gangline_schemas.job import JobState
from gangline_schemas.memory import keep_newest
from gangline_studies.core.forgetting import forget_rungs, forget_studies
from gangline_studies.core.state import (
    CURVE_POINTS,
    CURVE_POINTS_ENDED,
    REQUESTS_KEPT,
    Curve,
    JobOf,
    Phase,
    Ranked,
    Saved,
    Study,
    StudyState,
    Trial,
    job_id,
)
from gangline_studies.core.values import is_feasible, oriented

fold: Fold[StudyState] = Fold(Topic.STUDIES)
"""How the events of gangline.studies change the state, in place."""


# Studies


@fold.on(StudyCreated)
def _(state: StudyState, event: StudyCreated, _at: datetime) -> None:
    state.studies[event.study_id] = Study(
        event.spec, event.user, event.seed, event.created_at, size_bytes=event.size_bytes
    )
    state.active[event.study_id] = None
    state.over[event.study_id] = ()
    _answered(state, event.request_source, event.request_id)


@fold.on(StudyRefused)
def _(state: StudyState, event: StudyRefused, _at: datetime) -> None:
    _answered(state, event.request_source, event.request_id)


@fold.on(StudyEnding)
def _(state: StudyState, event: StudyEnding, _at: datetime) -> None:
    _change(state, event.study_id, ending=event.reason, message=event.message, clones=())
    _answered(state, event.request_source, event.request_id)


@fold.on(StudyEnded)
def _(state: StudyState, event: StudyEnded, at: datetime) -> None:
    _change(state, event.study_id, ended_at=at)
    del state.active[event.study_id]
    state.ended[event.study_id] = at
    for key in [key for key in state.rungs if key[0] == event.study_id]:
        del state.rungs[key]
    state.over[event.study_id] = tuple(
        trial._replace(curve=_thinned(trial.curve, CURVE_POINTS_ENDED))
        for trial in state.over[event.study_id]
    )
    forget_studies(state, at)


def _answered(state: StudyState, source: str, request_id: str) -> None:
    if request_id:
        state.requests[request_key(source, request_id)] = None
        keep_newest(state.requests, REQUESTS_KEPT)


# Trials


@fold.on(TrialProposed)
def _(state: StudyState, event: TrialProposed, at: datetime) -> None:
    study = state.studies[event.study_id]
    state.trials[event.study_id, event.number] = Trial(
        event.number,
        event.parameters,
        event.by,
        event.results,
        at,
        bracket=event.bracket,
        parent=event.parent,
        stale_at=at if event.results < study.results else None,
    )
    _change(
        state,
        event.study_id,
        next_number=event.number + 1,
        proposed=study.proposed + 1,
        open=study.open + 1,
        starts=study.starts + (event.by == "start"),
        grid=study.grid + (event.by == "grid"),
        clones=study.clones if event.parent is None else study.clones[1:],
    )


@fold.on(TrialWithdrawn)
def _(state: StudyState, event: TrialWithdrawn, at: datetime) -> None:
    study = state.studies[event.study_id]
    since = study.waits_since or state.trials[event.study_id, event.number].proposed_at
    changed = {"withdrawn": study.withdrawn + 1, "waits_since": since}
    _change(state, event.study_id, proposed=study.proposed - 1, **changed)
    _end(state, event, at, phase=Phase.WITHDRAWN)


@fold.on(TrialJobRequested)
def _(state: StudyState, event: TrialJobRequested, _at: datetime) -> None:
    study = state.studies[event.study_id]
    _set(
        state,
        event,
        part=event.part,
        live=True,
        stopping=False,
        attempt=0,
        exited=0,
        logs_read=False,
        job_state=None,
        job_ended_at=None,
        message="",
    )
    if event.part > 1:
        state.jobs.pop(job_id(event.study_id, event.number, event.part - 1), None)
    state.jobs[event.job_id] = JobOf(event.study_id, event.number, event.part)
    _change(state, event.study_id, live=(*study.live, event.number))


@fold.on(TrialJobStopRequested)
def _(state: StudyState, event: TrialJobStopRequested, _at: datetime) -> None:
    _set(state, event, stopping=True)


@fold.on(TrialStarted)
def _(state: StudyState, event: TrialStarted, _at: datetime) -> None:
    trial = state.trials[event.study_id, event.number]
    phase = Phase.RUNNING if trial.phase is Phase.WAITING else trial.phase
    gang = {"attempt": event.attempt, "gpus": event.gpus, "since": event.allocated_at}
    _set(state, event, phase=phase, **gang)
    if trial.phase is Phase.WAITING:
        _change(state, event.study_id, withdrawn=0, waits_since=None)


@fold.on(TrialCharged)
def _(state: StudyState, event: TrialCharged, _at: datetime) -> None:
    trial = state.trials[event.study_id, event.number]
    study = state.studies[event.study_id]
    spent = trial.gpu_seconds + event.gpu_seconds
    _set(state, event, gpu_seconds=spent, gpus=0, since=None)
    _change(state, event.study_id, gpu_seconds=study.gpu_seconds + event.gpu_seconds)


@fold.on(TrialMeasured)
def _(state: StudyState, event: TrialMeasured, _at: datetime) -> None:
    trial = state.trials[event.study_id, event.number]
    objective = state.studies[event.study_id].spec.objective[0]
    value = event.values.get(objective.metric)
    curve = trial.curve
    if not curve or event.step > curve[-1][0]:
        curve = (*curve, (event.step, value))
    curve = _thinned(curve, CURVE_POINTS)
    rung = event.rungs[-1] + 1 if event.rungs else trial.rung
    logged = trial.logged or event.logged
    _set(state, event, step=event.step, curve=curve, values=event.values, rung=rung, logged=logged)
    if value is not None:
        ranked = (oriented(objective, value), event.number)
        for at in event.rungs:
            key = (event.study_id, trial.bracket, at)
            state.rungs[key] = _inserted(state.rungs.get(key, ()), ranked)
        forget_rungs(state, event)


def _thinned(curve: Curve, most: int) -> Curve:
    """At most so many points of a curve, the last one among them."""
    while len(curve) > most:
        curve = (*curve[:-1:2], curve[-1])
    return curve


@fold.on(TrialExited)
def _(state: StudyState, event: TrialExited, _at: datetime) -> None:
    _set(state, event, exited=event.attempt)


@fold.on(TrialLogsRead)
def _(state: StudyState, event: TrialLogsRead, _at: datetime) -> None:
    _set(state, event, logs_read=True)


@fold.on(TrialSaved)
def _(state: StudyState, event: TrialSaved, _at: datetime) -> None:
    _set(state, event, saved=Saved(event.part, event.attempt, event.step), saving=None)


@fold.on(TrialSaving)
def _(state: StudyState, event: TrialSaving, _at: datetime) -> None:
    _set(state, event, saving=Saved(event.part, event.attempt, event.step))


@fold.on(TrialSaveLost)
def _(state: StudyState, event: TrialSaveLost, _at: datetime) -> None:
    _set(state, event, saved=None, saving=None)


@fold.on(TrialPaused)
def _(state: StudyState, event: TrialPaused, at: datetime) -> None:
    study = state.studies[event.study_id]
    awaiting = tuple(number for number in study.awaiting if number != event.number)
    _set(state, event, phase=Phase.PAUSED, paused_rung=event.rung)
    key = (event.study_id, event.rung)
    state.paused[key] = _inserted(state.paused.get(key, ()), _ranked(state, event))
    _change(
        state, event.study_id, results=study.results + 1, paused=study.paused + 1, awaiting=awaiting
    )
    _outdate(state, event.study_id, at)


@fold.on(TrialPromoted)
def _(state: StudyState, event: TrialPromoted, _at: datetime) -> None:
    study = state.studies[event.study_id]
    _continue(state, event)
    _set(state, event, phase=Phase.RUNNING)
    _change(state, event.study_id, paused=study.paused - 1)


# Ends


@fold.on(TrialCompleted)
def _(state: StudyState, event: TrialCompleted, at: datetime) -> None:
    study = state.studies[event.study_id]
    paused = state.trials[event.study_id, event.number].phase is Phase.PAUSED
    best, best_value = study.best, study.best_value
    value = event.values.get(study.spec.objective[0].metric)
    if value is not None and is_feasible(study.spec, event.values):
        ranked = oriented(study.spec.objective[0], value)
        if best_value is None or ranked < oriented(study.spec.objective[0], best_value):
            best, best_value = event.number, value
    _change(
        state,
        event.study_id,
        results=study.results + (not paused),
        paused=study.paused - paused,
        completed=study.completed + 1,
        best=best,
        best_value=best_value,
    )
    _continue(state, event)
    _end(state, event, at, phase=Phase.COMPLETED, step=event.step, values=event.values)
    if not paused:
        _outdate(state, event.study_id, at)


@fold.on(TrialPruned)
def _(state: StudyState, event: TrialPruned, at: datetime) -> None:
    study = state.studies[event.study_id]
    paused = state.trials[event.study_id, event.number].phase is Phase.PAUSED
    clones = study.clones if event.better is None else (*study.clones, event.better)
    _change(
        state,
        event.study_id,
        results=study.results + (not paused),
        pruned=study.pruned + 1,
        paused=study.paused - paused,
        clones=clones,
    )
    _continue(state, event)
    _end(state, event, at, phase=Phase.PRUNED, why=event.reason)
    if not paused:
        _outdate(state, event.study_id, at)


@fold.on(TrialFailed)
def _(state: StudyState, event: TrialFailed, at: datetime) -> None:
    study = state.studies[event.study_id]
    results = event.reason is TrialFailure.OUT_OF_MEMORY
    counts = event.reason not in {TrialFailure.OUT_OF_MEMORY, TrialFailure.CANCELLED}
    _change(state, event.study_id, results=study.results + results, failed=study.failed + counts)
    _end(state, event, at, phase=Phase.FAILED, why=event.reason)
    if results:
        _outdate(state, event.study_id, at)


@fold.on(TrialJobEnded)
def _(state: StudyState, event: TrialJobEnded, at: datetime) -> None:
    study = state.studies[event.study_id]
    trial = state.trials[event.study_id, event.number]
    waits = not trial.phase.terminal and (
        trial.phase is not Phase.PAUSED or event.state is JobState.SUCCEEDED
    )
    live = tuple(number for number in study.live if number != event.number)
    awaiting = (*study.awaiting, event.number) if waits else study.awaiting
    _change(state, event.study_id, live=live, awaiting=awaiting)
    _set(
        state,
        event,
        live=False,
        stopping=False,
        job_state=event.state,
        message=event.message,
        job_ended_at=at,
    )
    _leave(state, event.study_id, event.number)


def _outdate(state: StudyState, study_id: str, at: datetime) -> None:
    """A result came, which the trials that wait do not know."""
    for number in state.studies[study_id].live:
        trial = state.trials[study_id, number]
        if trial.phase is Phase.WAITING and trial.stale_at is None:
            state.trials[study_id, number] = trial._replace(stale_at=at)


def _continue(state: StudyState, event: Any) -> None:
    """A trial is not paused any more, if it was."""
    rung = state.trials[event.study_id, event.number].paused_rung
    if rung is not None:
        key = (event.study_id, rung)
        state.paused[key] = tuple(each for each in state.paused[key] if each[1] != event.number)
        if not state.paused[key]:
            del state.paused[key]
        _set(state, event, paused_rung=None)


def _ranked(state: StudyState, event: TrialPaused) -> Ranked:
    """The value of a trial at the rung where it pauses: its last one, if it began no job since."""
    trial = state.trials[event.study_id, event.number]
    held = state.rungs[event.study_id, trial.bracket, event.rung]
    objective = state.studies[event.study_id].spec.objective[0]
    last = oriented(objective, trial.curve[-1][1] or 0.0), event.number
    place = bisect_left(held, last)
    if place < len(held) and held[place] == last:
        return last
    return next(each for each in held if each[1] == event.number)


def _inserted(held: tuple[Ranked, ...], ranked: Ranked) -> tuple[Ranked, ...]:
    place = bisect_left(held, ranked)
    return held[:place] + (ranked,) + held[place:]  # noqa: RUF005 - faster


def _end(state: StudyState, event: Any, at: datetime, **changes: Any) -> None:
    _set(state, event, ended_at=at, **changes)
    _leave(state, event.study_id, event.number)


def _leave(state: StudyState, study_id: str, number: int) -> None:
    """A trial with its result and without a job is over. Of a withdrawn one nothing is kept."""
    trial = state.trials[study_id, number]
    if trial.live or not trial.phase.terminal:
        return
    del state.trials[study_id, number]
    state.jobs.pop(job_id(study_id, number, trial.part), None)
    study = state.studies[study_id]
    awaiting = study.awaiting and tuple(each for each in study.awaiting if each != number)
    _change(state, study_id, open=study.open - 1, awaiting=awaiting)
    if trial.phase is not Phase.WITHDRAWN:
        state.over[study_id] = (*state.over[study_id], trial)


def _set(state: StudyState, event: Any, **changes: Any) -> None:
    key = (event.study_id, event.number)
    state.trials[key] = state.trials[key]._replace(**changes)


def _change(state: StudyState, study_id: str, **changes: Any) -> None:
    state.studies[study_id] = state.studies[study_id]._replace(**changes)
