"""The fold of gangline.pipelines: events of the steps of runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from gangline_pipelines.core.evolve import fold
from gangline_pipelines.core.graph import Instance
from gangline_pipelines.core.model import Kept, Last, Run, StepRun, StepState
from gangline_pipelines.core.naming import pipeline_key
from gangline_pipelines.core.state import PipelineState, graph_of_run, step_key, steps_of, unresumed
from gangline_schemas.events.pipelines import (
    CheckDeferred,
    OutputsChecked,
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
    StepStudyEnded,
    StepStudyRequested,
    StepStudyStopRequested,
)
from gangline_schemas.memory import keep_newest

__all__ = ["fold"]
MOST_KEPT = 100_000
"""Entries of the cache."""
MOST_LAST = 100_000


@fold.on(StepKeyed)
def _(state: PipelineState, event: StepKeyed, at: datetime) -> None:
    _job_over(state, event.run_id, event.step)
    run = state.runs[event.run_id]
    hit, own = event.hit is not None, event.hit == event.run_id
    before = state.steps[step_key(event.run_id, event.step)]
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
        saved_key=event.hit_save,
        check=event.check,
        starts_from=event.starts_from,
        outputs=dict(event.outputs),
        started_at=before.started_at if own else at,
    )
    asked = max(run.asked, event.check)
    ready = run.ready if hit else (*run.ready, event.step)
    state.runs[event.run_id] = replace(run, asked=asked, ready=ready)


@fold.on(OutputsChecked)
def _(state: PipelineState, event: OutputsChecked, at: datetime) -> None:
    run, missing, gone = state.runs[event.run_id], frozenset(event.missing), {*event.gone}
    left, graph = run.left, graph_of_run(state, run)
    for name, step in [*steps_of(state, run)]:
        if step.state is not StepState.CHECKING:
            continue
        own = step.hit == run.run_id
        again = StepRun(tries=step.tries, spared=step.spared + own, gpu_seconds=step.gpu_seconds)
        decided = step.check == event.check
        lost = any(one.digest in missing for one in step.outputs.values())
        if decided and (lost or step.saved_key in gone):
            state.kept.pop(f"{run.team}/{step.key}", None)
            what = f"outputs of {step.hit} are" if lost else f"checkpoint of {step.job_id} is"
            changed = replace(again, why=f"the {what} gone")
        elif _rests_on_nothing(state, run, graph.instances[name]):
            changed = again
        elif not decided:
            continue
        else:
            left -= 1
            ended = StepState.SUCCEEDED if own else StepState.CACHED
            changed = replace(step, state=ended, hit="" if own else step.hit, ended_at=at)
            _note_last(state, run, name, step)
            if own:
                _note_kept(state, run, name, step, at)
            else:
                _note_use(state, run, step, at)
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
    _requested(state, event, event.job_id, at)


@fold.on(StepJobStopRequested)
def _(state: PipelineState, event: StepJobStopRequested, _at: datetime) -> None:
    _step(state, event.run_id, event.step, stopping=True)


@fold.on(StepStudyRequested)
def _(state: PipelineState, event: StepStudyRequested, at: datetime) -> None:
    _requested(state, event, event.study_id, at)


@fold.on(StepStudyStopRequested)
def _(state: PipelineState, event: StepStudyStopRequested, _at: datetime) -> None:
    _step(state, event.run_id, event.step, stopping=True)


@fold.on(StepStudyEnded)
def _(state: PipelineState, event: StepStudyEnded, _at: datetime) -> None:
    _step(state, event.run_id, event.step, best=event.best)


@fold.on(StepOutputNoted)
def _(state: PipelineState, event: StepOutputNoted, _at: datetime) -> None:
    step = state.steps[step_key(event.run_id, event.step)]
    outputs = {**step.outputs, event.name: event.artifact}
    written_by = {**step.written_by, event.name: event.attempt}
    _step(state, event.run_id, event.step, outputs=outputs, written_by=written_by)


@fold.on(StepSaveNoted)
def _(state: PipelineState, event: StepSaveNoted, _at: datetime) -> None:
    saved = {"saved_step": event.saved_step, "saved_key": event.commit_key}
    _step(state, event.run_id, event.step, **saved)


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
    _step(
        state,
        event.run_id,
        event.step,
        job_ended=event.succeeded,
        job_ended_at=at,
        last_attempt=event.attempt,
        reason=event.reason,
    )
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
        job_id=before.best.job_id if before.best is not None else before.job_id,
        reason=event.reason,
        outputs=dict(event.outputs),
        ended_at=at,
        next_at=None,
    )
    run = state.runs[event.run_id]
    ready = _without(run.ready, event.step, before)
    state.runs[event.run_id] = replace(run, left=run.left - 1, ready=ready)
    source = unresumed(state, run, event.step)
    if source is not None:
        state.kept.pop(f"{run.team}/{state.steps[step_key(run.run_id, source)].key}", None)
    if event.result != "succeeded":
        return
    _note_kept(state, run, event.step, step, at)
    _note_last(state, run, event.step, step)


def _step(state: PipelineState, run_id: str, name: str, /, **changes: Any) -> StepRun:
    key = step_key(run_id, name)
    state.steps[key] = changed = replace(state.steps[key], **changes)
    return changed


def _without(ready: tuple[str, ...], name: str, step: StepRun) -> tuple[str, ...]:
    if step.state is not StepState.READY:
        return ready
    return tuple(one for one in ready if one != name)


def _rests_on_nothing(state: PipelineState, run: Run, instance: Instance) -> bool:
    """Whether a hit was found by outputs that turned out to be missing."""
    fine = {StepState.CHECKING, StepState.SUCCEEDED, StepState.CACHED}
    for need in instance.needs:
        found = state.steps[step_key(run.run_id, need)].state
        if found not in fine and not (found is StepState.SKIPPED and need in instance.optional):
            return True
    return False


def _requested(
    state: PipelineState,
    event: StepJobRequested | StepStudyRequested,
    job_id: str,
    at: datetime,
) -> None:
    before = state.steps[step_key(event.run_id, event.step)]
    _step(
        state,
        event.run_id,
        event.step,
        state=StepState.RUNNING,
        job_id=job_id,
        tries=event.tries,
        outputs={},
        written_by={},
        cause=None,
        job_ended=None,
        job_ended_at=None,
        last_attempt=0,
        next_at=None,
        charged=0,
        saved_step=None,
        saved_key=None,
        stopping=False,
        started_at=at,
    )
    state.jobs[job_id] = (event.run_id, event.step)
    state.waiting.pop(step_key(event.run_id, event.step), None)
    run = state.runs[event.run_id]
    ready = _without(run.ready, event.step, before)
    state.runs[event.run_id] = replace(run, live=run.live + 1, jobs=run.jobs + 1, ready=ready)


def _job_over(state: PipelineState, run_id: str, name: str) -> None:
    key = step_key(run_id, name)
    state.waiting.pop(key, None)
    step = state.steps[key]
    if step.state is StepState.RUNNING:
        state.jobs.pop(step.job_id, None)
        run = state.runs[run_id]
        state.runs[run_id] = replace(run, live=run.live - 1)


def _note_kept(state: PipelineState, run: Run, name: str, step: StepRun, at: datetime) -> None:
    """Put the outputs of a step that succeeded into the cache."""
    if graph_of_run(state, run).instances[name].spec.cache and step.outputs:
        key = f"{run.team}/{step.key}"
        state.kept.pop(key, None)
        state.kept[key] = Kept(
            dict(step.outputs), run.run_id, step.job_id, at, run.pipeline, run.run_id, at,
            step.saved_key,
        )  # fmt: skip
        keep_newest(state.kept, MOST_KEPT)


def _note_use(state: PipelineState, run: Run, step: StepRun, at: datetime) -> None:
    kept = state.kept.get(f"{run.team}/{step.key}")
    if kept is not None:
        used = replace(kept, pipeline=run.pipeline, used_by=run.run_id, used_at=at)
        state.kept[f"{run.team}/{step.key}"] = used


def _note_last(state: PipelineState, run: Run, name: str, step: StepRun) -> None:
    place = f"{pipeline_key(run.team, run.pipeline)}/{name}"
    state.last.pop(place, None)
    state.last[place] = Last(step.key, dict(step.parts), run.run_id)
    keep_newest(state.last, MOST_LAST)
