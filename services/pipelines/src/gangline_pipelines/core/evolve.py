"""The fold of gangline.pipelines: events of pipelines and runs; steps are in evolve_steps.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, TypeVar

from gangline_bus.decision import Fold
from gangline_pipelines.core.graph import graph_of
from gangline_pipelines.core.model import Pipeline, Queued, Run, RunState, StepRun, StepState
from gangline_pipelines.core.naming import pipeline_key
from gangline_pipelines.core.state import (
    PipelineState,
    spec_key,
    spec_of,
    step_key,
    steps_of,
    unresumed,
)
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import request_key
from gangline_schemas.events.pipelines import (
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
    TimesMissed,
)
from gangline_schemas.memory import forget_old, keep_newest

REQUESTS_KEPT = 10_000
SEEN_FOR = timedelta(days=400)
"""So long after its news came, a run cannot start a second time by it."""
MOST_CAUSES = 200_000
"""So many news are known: one snapshot is news to each trigger of its team."""
MOST_STEPS = 100_000
"""Steps of runs that ended: with more, the oldest runs are forgotten before their time."""
DAY = timedelta(days=1)
STARTS_KEPT = 10_000
EARLIER_BYTES = 16 << 20
"""Of a team's earlier files that runs began with: with more, its oldest runs are forgotten too."""
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
    active = event.active or ""
    made = Pipeline(spec.team, spec.name, event.revision, event.user, at, active=active)
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
    state.sizes[spec_key(spec.team, spec.name, event.revision)] = event.size_bytes
    if before is not None and before.revision != event.revision:
        _replace_spec(state, before)
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
    _replace_spec(state, held)


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
    _answered(state, event)
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
    used = spec_key(event.team, event.pipeline, event.revision)
    state.uses[used] = state.uses.get(used, 0) + 1
    _count_live(state, event.team, count)
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
    sources = {unresumed(state, run, name) for name, _ in steps_of(state, run)} - {None}
    lost = {
        name: f"the checkpoint of {step.job_id} is gone"
        for name, step in steps_of(state, run)
        if name in sources
    }
    left = 0
    for name, step in [*steps_of(state, run)]:
        if step.state in again or name in lost:
            left += 1
            state.steps[step_key(run.run_id, name)] = StepRun(
                tries=step.tries, spared=step.tries, gpu_seconds=step.gpu_seconds,
                why=lost.get(name, ""),
            )  # fmt: skip
    del state.runs[event.run_id]  # it begins again, after the others
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
    _count_live(state, run.team, run.steps)
    key = pipeline_key(run.team, run.pipeline)
    state.pipelines[key] = replace(state.pipelines[key], active=event.run_id)


@fold.on(RunEnded)
def _(state: PipelineState, event: RunEnded, at: datetime) -> None:
    run = state.runs[event.run_id]
    state.runs[event.run_id] = replace(
        run, state=RunState(event.result), reason=event.reason, ended_at=at
    )
    del state.live[event.run_id]
    _count_live(state, run.team, -run.steps)
    state.ended[event.run_id] = at
    key = pipeline_key(run.team, run.pipeline)
    held = state.pipelines.get(key)
    if held is not None:
        active = "" if held.active == event.run_id else held.active
        state.pipelines[key] = replace(held, active=active, failures=event.failed_in_row)
    _forget(state, run.team, at)


# Parts of several events


def _answered(state: PipelineState, event: Any, reason: str = "") -> None:
    if event.request_id:
        state.requests[request_key(event.request_source, event.request_id)] = reason
        keep_newest(state.requests, REQUESTS_KEPT)


def _see(state: PipelineState, event: RunQueued | RunSkipped | RunStarted, at: datetime) -> None:
    cause = event.cause
    if cause.kind in {"snapshot", "drift"}:
        state.causes.setdefault(event.run_id, at)
        forget_old(state.causes, lambda came: came, at, SEEN_FOR)
        keep_newest(state.causes, MOST_CAUSES)
    elif cause.due_at is not None:
        place = f"{pipeline_key(event.team, event.pipeline)}/{cause.trigger}"
        if place in state.times:
            state.times[place] = max(state.times[place], cause.due_at)


def _unqueue(state: PipelineState, team: str, pipeline: str, run_id: str) -> None:
    if state.queued.pop(run_id, None) is not None:
        key = pipeline_key(team, pipeline)
        held = state.pipelines[key]
        left = tuple(one for one in held.queued if one != run_id)
        state.pipelines[key] = replace(held, queued=left)


def _count_live(state: PipelineState, team: str, steps: int) -> None:
    state.live_steps[team] = state.live_steps.get(team, 0) + steps
    if not state.live_steps[team]:
        del state.live_steps[team]


def _forget(state: PipelineState, team: str, now: datetime) -> None:
    """Forget runs that ended long ago, and the oldest if those that ended hold too much.

    Called after the end of a run of a team. Runs that end now stay: their ends are still followed
    up. Cost: the steps that are forgotten; if earlier files are many, all files and ended runs.
    """
    for run_id, _ in forget_old(state.ended, lambda at: at, now):
        _forget_run(state, run_id)
    live = sum(state.live_steps.values())
    while len(state.steps) - live > MOST_STEPS:
        old = [*islice((run_id for run_id, at in state.ended.items() if at != now), 256)]
        if not old:
            break
        _forget_while(state, old, lambda: len(state.steps) - live > MOST_STEPS)
    if state.earlier_bytes > EARLIER_BYTES:
        ended = [state.runs[run_id] for run_id, at in state.ended.items() if at != now]
        own = [run.run_id for run in ended if run.team == team and _is_earlier(state, run)]
        others = state.earlier_bytes - _earlier_bytes(state, team)
        _forget_while(state, own, lambda: state.earlier_bytes - others > EARLIER_BYTES)


def _earlier_bytes(state: PipelineState, team: str) -> int:
    """Of the files that only runs of a team use. Cost: all files."""
    now = {spec_key(one.team, one.name, one.revision) for one in state.pipelines.values()}
    sizes = state.sizes.items()
    return sum(size for key, size in sizes if key.startswith(f"{team}/") and key not in now)


def _forget_while(state: PipelineState, ended: list[str], too_much: Callable[[], bool]) -> None:
    for run_id in ended:
        if not too_much():
            return
        del state.ended[run_id]
        _forget_run(state, run_id)


def _is_earlier(state: PipelineState, run: Run) -> bool:
    """Whether a run began with another file than its pipeline has now."""
    current = state.pipelines.get(pipeline_key(run.team, run.pipeline))
    return current is None or current.revision != run.revision


def _forget_run(state: PipelineState, run_id: str) -> None:
    run = state.runs[run_id]
    for name in graph_of(spec_of(state, run)).instances:
        del state.steps[step_key(run_id, name)]
    del state.runs[run_id]
    key = spec_key(run.team, run.pipeline, run.revision)
    state.uses[key] -= 1
    if state.uses[key]:
        return
    del state.uses[key]
    if _is_earlier(state, run):
        state.earlier_bytes -= state.sizes[key]
        _drop_spec(state, key)


def _replace_spec(state: PipelineState, before: Pipeline) -> None:
    """A revision is its pipeline's no longer; it stays while runs use it."""
    key = spec_key(before.team, before.name, before.revision)
    if key in state.uses:
        state.earlier_bytes += state.sizes[key]
    else:
        _drop_spec(state, key)


def _drop_spec(state: PipelineState, key: str) -> None:
    del state.specs[key]
    del state.sizes[key]
