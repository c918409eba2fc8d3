"""The fold of gangline.pipelines: how each of its events changes the state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from gangline_bus.decision import Fold
from gangline_pipelines.core.graph import graph_of
from gangline_pipelines.core.model import (
    Kept,
    Last,
    Pipeline,
    Queued,
    Run,
    RunState,
    StepRun,
    StepState,
)
from gangline_pipelines.core.naming import pipeline_key
from gangline_pipelines.core.state import (
    PipelineState,
    graph_of_run,
    request_key,
    spec_key,
    spec_of,
    step_key,
    steps_of,
)
from gangline_schemas.catalog import Topic
from gangline_schemas.events.pipelines import (
    CheckDeferred,
    OutputsChecked,
    PipelineConfigured,
    PipelinePaused,
    PipelineRemoved,
    PipelineRequestRefused,
    PipelineUnpaused,
    RunEnded,
    RunQueued,
    RunRetried,
    RunSkipped,
    RunStarted,
    RunStopping,
    StepCharged,
    StepDeferred,
    StepEnded,
    StepFailureNoted,
    StepJobEnded,
    StepJobRequested,
    StepJobStopRequested,
    StepKeyed,
    StepOutputNoted,
    StepSaveNoted,
    TimesMissed,
)
from gangline_schemas.memory import forget_old

REQUESTS_KEPT = 10_000
MOST_KEPT = 100_000
"""Entries of the cache."""
MOST_LAST = 100_000
SEEN_FOR = timedelta(days=400)
"""So long after its cause came, a run cannot start a second time by it."""
DAY = timedelta(days=1)
STARTS_KEPT = 10_000
ValueT = TypeVar("ValueT")

fold: Fold[PipelineState] = Fold(Topic.PIPELINES)
"""How the events of gangline.pipelines change the state, in place."""


# Pipelines


@fold.on(PipelineConfigured)
def _(state: PipelineState, event: PipelineConfigured, at: datetime) -> None:
    _answered(state, event)
    spec = event.spec
    key = pipeline_key(spec.team, spec.name)
    before = state.pipelines.get(key)
    made = Pipeline(spec.team, spec.name, event.revision, event.user, at)
    if before is not None:
        made = replace(
            made,
            runs=before.runs,
            queued=before.queued,
            active=before.active,
            starts=before.starts,
            paused=before.paused,
        )
    state.pipelines[key] = made
    state.specs[spec_key(spec.team, spec.name, event.revision)] = spec
    if before is not None:
        _drop_spec(state, before.team, before.name, before.revision)
    for name, trigger in spec.triggers.items():
        place = f"{key}/{name}"
        if trigger.kind == "schedule" and place not in state.times:
            state.times[place] = at
    for place in [one for one in state.times if one.startswith(f"{key}/")]:
        found = spec.triggers.get(place.removeprefix(f"{key}/"))
        if found is None or found.kind != "schedule":
            del state.times[place]


@fold.on(PipelineRemoved)
def _(state: PipelineState, event: PipelineRemoved, _at: datetime) -> None:
    _answered(state, event)
    key = pipeline_key(event.team, event.pipeline)
    held = state.pipelines.pop(key)
    for name in held.queued:
        del state.queued[name]
    for place in [one for one in state.times if one.startswith(f"{key}/")]:
        del state.times[place]
    _drop_spec(state, held.team, held.name, held.revision)


@fold.on(PipelinePaused)
def _(state: PipelineState, event: PipelinePaused, _at: datetime) -> None:
    _answered(state, event)
    key = pipeline_key(event.team, event.pipeline)
    state.pipelines[key] = replace(state.pipelines[key], paused=event.reason)


@fold.on(PipelineUnpaused)
def _(state: PipelineState, event: PipelineUnpaused, at: datetime) -> None:
    _answered(state, event)
    key = pipeline_key(event.team, event.pipeline)
    state.pipelines[key] = replace(state.pipelines[key], paused="", failures=0)
    for place in [one for one in state.times if one.startswith(f"{key}/")]:
        state.times[place] = at


@fold.on(PipelineRequestRefused)
def _(state: PipelineState, event: PipelineRequestRefused, _at: datetime) -> None:
    _answered(state, event, event.reason)


# Runs


@fold.on(RunQueued)
def _(state: PipelineState, event: RunQueued, at: datetime) -> None:
    _answered(state, event)
    _see(state, event, at)
    key = pipeline_key(event.team, event.pipeline)
    held = state.pipelines[key]
    state.pipelines[key] = replace(held, queued=(*held.queued, event.run_id))
    state.queued[event.run_id] = Queued(event.team, event.pipeline, event.cause, event.user)


@fold.on(RunSkipped)
def _(state: PipelineState, event: RunSkipped, at: datetime) -> None:
    _answered(state, event, event.reason)
    _see(state, event, at)
    _unqueue(state, event.team, event.pipeline, event.run_id)


@fold.on(RunStarted)
def _(state: PipelineState, event: RunStarted, at: datetime) -> None:
    _answered(state, event)
    _see(state, event, at)
    _unqueue(state, event.team, event.pipeline, event.run_id)
    key = pipeline_key(event.team, event.pipeline)
    held = state.pipelines[key]
    starts = held.starts
    if event.cause.kind != "manual":
        starts = tuple(one for one in (*starts, at) if at - one < DAY)[-STARTS_KEPT:]
    state.pipelines[key] = replace(held, runs=event.number, active=event.run_id, starts=starts)
    graph = graph_of(state.specs[spec_key(event.team, event.pipeline, event.revision)])
    for name in graph.instances:
        state.steps[step_key(event.run_id, name)] = StepRun()
    count = len(graph.instances)
    state.runs[event.run_id] = Run(
        event.run_id,
        event.team,
        event.pipeline,
        event.revision,
        event.number,
        event.cause,
        event.user,
        started_at=at,
        steps=count,
        left=count,
    )
    state.live[event.run_id] = at


@fold.on(TimesMissed)
def _(state: PipelineState, event: TimesMissed, _at: datetime) -> None:
    place = f"{pipeline_key(event.team, event.pipeline)}/{event.trigger}"
    if place in state.times:
        state.times[place] = max(state.times[place], event.until)


@fold.on(RunStopping)
def _(state: PipelineState, event: RunStopping, _at: datetime) -> None:
    _answered(state, event)
    run = state.runs[event.run_id]
    state.runs[event.run_id] = replace(
        run, state=RunState.STOPPING, result=event.result, reason=event.reason
    )


@fold.on(RunRetried)
def _(state: PipelineState, event: RunRetried, at: datetime) -> None:
    _answered(state, event)
    run = state.runs[event.run_id]
    again = {StepState.FAILED, StepState.BLOCKED, StepState.CANCELLED}
    left = 0
    for name, step in [*steps_of(state, run)]:
        if step.state in again:
            left += 1
            state.steps[step_key(run.run_id, name)] = StepRun(
                tries=step.tries, spared=step.tries, gpu_seconds=step.gpu_seconds
            )
    state.runs[event.run_id] = replace(
        run,
        state=RunState.RUNNING,
        left=left,
        result="",
        reason="",
        ended_at=None,
        retries=run.retries + 1,
        started_at=at,
    )
    del state.ended[event.run_id]
    state.live[event.run_id] = at
    key = pipeline_key(run.team, run.pipeline)
    state.pipelines[key] = replace(state.pipelines[key], active=event.run_id)


@fold.on(RunEnded)
def _(state: PipelineState, event: RunEnded, at: datetime) -> None:
    run = state.runs[event.run_id]
    state.runs[event.run_id] = replace(
        run, state=RunState(event.result), reason=event.reason, ended_at=at
    )
    del state.live[event.run_id]
    state.ended[event.run_id] = at
    key = pipeline_key(run.team, run.pipeline)
    held = state.pipelines.get(key)
    if held is not None:
        active = "" if held.active == event.run_id else held.active
        state.pipelines[key] = replace(held, active=active, failures=event.failed_in_row)
    _forget(state, at)


# Steps


@fold.on(StepKeyed)
def _(state: PipelineState, event: StepKeyed, at: datetime) -> None:
    run = state.runs[event.run_id]
    hit = event.hit is not None
    _step(
        state,
        event.run_id,
        event.step,
        state=StepState.CHECKING if hit else StepState.READY,
        key=event.key,
        parts=event.parts,
        why=event.reason,
        hit=event.hit or "",
        job_id=event.hit_job or "",
        check=event.check,
        outputs=dict(event.outputs),
        started_at=at,
    )
    asked = max(run.asked, event.check)
    ready = run.ready if hit else (*run.ready, event.step)
    state.runs[event.run_id] = replace(run, asked=asked, ready=ready)


@fold.on(OutputsChecked)
def _(state: PipelineState, event: OutputsChecked, at: datetime) -> None:
    run, missing = state.runs[event.run_id], frozenset(event.missing)
    left, graph = run.left, graph_of_run(state, run)
    for name, step in [*steps_of(state, run)]:
        if step.state is not StepState.CHECKING:
            continue
        again = StepRun(tries=step.tries, spared=step.spared, gpu_seconds=step.gpu_seconds)
        decided = step.check == event.check
        if decided and any(one.digest in missing for one in step.outputs.values()):
            state.kept.pop(f"{run.team}/{step.key}", None)
            changed = replace(again, why=f"the outputs of {step.hit} are gone")
        elif _rests_on_nothing(state, run, graph.instances[name].needs):
            changed = again
        elif not decided:
            continue
        else:
            left -= 1
            changed = replace(step, state=StepState.CACHED, ended_at=at)
            _note_last(state, run, name, step)
        state.steps[step_key(run.run_id, name)] = changed
    state.runs[event.run_id] = replace(
        run, left=left, checked=event.check, check_tries=0, check_at=None
    )


@fold.on(CheckDeferred)
def _(state: PipelineState, event: CheckDeferred, _at: datetime) -> None:
    run = state.runs[event.run_id]
    state.runs[event.run_id] = replace(run, check_tries=event.tries, check_at=event.next_at)


@fold.on(StepJobRequested)
def _(state: PipelineState, event: StepJobRequested, at: datetime) -> None:
    before = state.steps[step_key(event.run_id, event.step)]
    _step(
        state,
        event.run_id,
        event.step,
        state=StepState.RUNNING,
        job_id=event.job_id,
        tries=event.tries,
        outputs={},
        cause=None,
        job_ended=None,
        job_ended_at=None,
        next_at=None,
        charged=0,
        saved_step=None,
        stopping=False,
        started_at=at,
    )
    state.jobs[event.job_id] = (event.run_id, event.step)
    state.waiting.pop(step_key(event.run_id, event.step), None)
    run = state.runs[event.run_id]
    ready = _without(run.ready, event.step, before)
    state.runs[event.run_id] = replace(run, live=run.live + 1, jobs=run.jobs + 1, ready=ready)


@fold.on(StepJobStopRequested)
def _(state: PipelineState, event: StepJobStopRequested, _at: datetime) -> None:
    _step(state, event.run_id, event.step, stopping=True)


@fold.on(StepOutputNoted)
def _(state: PipelineState, event: StepOutputNoted, _at: datetime) -> None:
    step = state.steps[step_key(event.run_id, event.step)]
    outputs = {**step.outputs, event.name: event.artifact}
    _step(state, event.run_id, event.step, outputs=outputs)


@fold.on(StepSaveNoted)
def _(state: PipelineState, event: StepSaveNoted, _at: datetime) -> None:
    _step(state, event.run_id, event.step, saved_step=event.saved_step)


@fold.on(StepFailureNoted)
def _(state: PipelineState, event: StepFailureNoted, _at: datetime) -> None:
    _step(state, event.run_id, event.step, cause=event.cause)


@fold.on(StepCharged)
def _(state: PipelineState, event: StepCharged, _at: datetime) -> None:
    step, run = state.steps[step_key(event.run_id, event.step)], state.runs[event.run_id]
    total = step.gpu_seconds + event.gpu_seconds
    _step(state, event.run_id, event.step, gpu_seconds=total, charged=event.attempt)
    state.runs[event.run_id] = replace(run, gpu_seconds=run.gpu_seconds + event.gpu_seconds)


@fold.on(StepJobEnded)
def _(state: PipelineState, event: StepJobEnded, at: datetime) -> None:
    changed = {"job_ended": event.succeeded, "job_ended_at": at, "reason": event.reason}
    _step(state, event.run_id, event.step, **changed)
    state.waiting[step_key(event.run_id, event.step)] = (event.run_id, event.step)


@fold.on(StepDeferred)
def _(state: PipelineState, event: StepDeferred, _at: datetime) -> None:
    _job_over(state, event.run_id, event.step)
    changed = {"state": StepState.DEFERRED, "reason": event.reason, "next_at": event.next_at}
    _step(state, event.run_id, event.step, **changed)
    state.waiting[step_key(event.run_id, event.step)] = (event.run_id, event.step)


@fold.on(StepEnded)
def _(state: PipelineState, event: StepEnded, at: datetime) -> None:
    before = state.steps[step_key(event.run_id, event.step)]
    _job_over(state, event.run_id, event.step)
    step = _step(
        state,
        event.run_id,
        event.step,
        state=StepState(event.result),
        reason=event.reason,
        outputs=dict(event.outputs),
        ended_at=at,
        next_at=None,
    )
    run = state.runs[event.run_id]
    ready = _without(run.ready, event.step, before)
    state.runs[event.run_id] = replace(run, left=run.left - 1, ready=ready)
    if event.result != "succeeded":
        return
    instance = graph_of_run(state, run).instances[event.step]
    if instance.spec.cache and event.outputs:
        key = f"{run.team}/{step.key}"
        state.kept.pop(key, None)
        state.kept[key] = Kept(dict(event.outputs), run.run_id, step.job_id, at)
        _keep_newest(state.kept, MOST_KEPT)
    _note_last(state, run, event.step, step)


# Parts of several events


def _answered(state: PipelineState, event: Any, reason: str = "") -> None:
    if event.request_id:
        state.requests[request_key(event.request_source, event.request_id)] = reason
        _keep_newest(state.requests, REQUESTS_KEPT)


def _see(state: PipelineState, event: RunQueued | RunSkipped | RunStarted, at: datetime) -> None:
    state.causes.setdefault(event.run_id, at)
    cause = event.cause
    if cause.due_at is not None:
        place = f"{pipeline_key(event.team, event.pipeline)}/{cause.trigger}"
        if place in state.times:
            state.times[place] = max(state.times[place], cause.due_at)


def _unqueue(state: PipelineState, team: str, pipeline: str, run_id: str) -> None:
    if state.queued.pop(run_id, None) is not None:
        key = pipeline_key(team, pipeline)
        held = state.pipelines[key]
        left = tuple(one for one in held.queued if one != run_id)
        state.pipelines[key] = replace(held, queued=left)


def _step(state: PipelineState, run_id: str, name: str, /, **changes: Any) -> StepRun:
    key = step_key(run_id, name)
    state.steps[key] = changed = replace(state.steps[key], **changes)
    return changed


def _without(ready: tuple[str, ...], name: str, step: StepRun) -> tuple[str, ...]:
    if step.state is not StepState.READY:
        return ready
    return tuple(one for one in ready if one != name)


def _rests_on_nothing(state: PipelineState, run: Run, needs: tuple[str, ...]) -> bool:
    """Whether a hit was found by outputs that turned out to be missing."""
    states = (state.steps[step_key(run.run_id, need)].state for need in needs)
    return any(not one.good and one is not StepState.CHECKING for one in states)


def _job_over(state: PipelineState, run_id: str, name: str) -> None:
    key = step_key(run_id, name)
    state.waiting.pop(key, None)
    step = state.steps[key]
    if step.state is StepState.RUNNING:
        state.jobs.pop(step.job_id, None)
        run = state.runs[run_id]
        state.runs[run_id] = replace(run, live=run.live - 1)


def _note_last(state: PipelineState, run: Run, name: str, step: StepRun) -> None:
    place = f"{pipeline_key(run.team, run.pipeline)}/{name}"
    state.last.pop(place, None)
    state.last[place] = Last(step.key, dict(step.parts), run.run_id)
    _keep_newest(state.last, MOST_LAST)


def _keep_newest(held: dict[str, Any], most: int) -> None:
    while len(held) > most:
        del held[next(iter(held))]


def _forget(state: PipelineState, now: datetime) -> None:
    """Runs that ended long ago, and causes that came long ago."""
    for run_id, _ in forget_old(state.ended, lambda at: at, now):
        run = state.runs[run_id]
        for name in graph_of(spec_of(state, run)).instances:
            del state.steps[step_key(run_id, name)]
        del state.runs[run_id]
        _drop_spec(state, run.team, run.pipeline, run.revision)
    forget_old(state.causes, lambda at: at, now, SEEN_FOR)


def _drop_spec(state: PipelineState, team: str, pipeline: str, revision: int) -> None:
    """Forget a revision that neither the pipeline nor a run uses."""
    held: Mapping[str, Pipeline] = state.pipelines
    current = held.get(pipeline_key(team, pipeline))
    if current is not None and current.revision == revision:
        return
    used = (team, pipeline, revision)
    if not any((run.team, run.pipeline, run.revision) == used for run in state.runs.values()):
        state.specs.pop(spec_key(team, pipeline, revision), None)
