"""The invariants of the state."""

from __future__ import annotations

from collections.abc import Iterator

from gangline_pipelines.core.model import Run, StepState
from gangline_pipelines.core.state import PipelineState, graph_of_run, spec_of, step_key


def violations(state: PipelineState) -> list[str]:
    """Sentences about what does not hold; [] when all is well. Cost: steps of runs that live."""
    found: list[str] = []
    for run_id in state.live:
        found += _of_run(state, state.runs[run_id])
    for job_id, (run_id, name) in state.jobs.items():
        step = state.steps.get(step_key(run_id, name))
        if step is None or step.job_id != job_id or step.state is not StepState.RUNNING:
            found.append(f"job {job_id}: is no running job of step {name} of {run_id}")
    live: dict[str, int] = {}
    for run_id in state.live:
        run = state.runs[run_id]
        live[run.team] = live.get(run.team, 0) + run.steps
    if live != {**state.live_steps}:
        found.append(f"steps of live runs: {dict(state.live_steps)} are noted, {live} are there")
    for key, held in state.pipelines.items():
        if held.active and held.active not in state.live:
            found.append(f"pipeline {key}: its run {held.active} has ended")
        if held.queued and not held.active:
            found.append(f"pipeline {key}: runs wait for nothing")
        found += [f"run {name}: is not queued" for name in held.queued if name not in state.queued]
    return found


def _of_run(state: PipelineState, run: Run) -> Iterator[str]:
    if run.state.ended:
        yield f"run {run.run_id}: lives and has ended"
    ready, live, left = set[str](), 0, 0
    for name, instance in graph_of_run(state, run).instances.items():
        step = state.steps[step_key(run.run_id, name)]
        if step.tries - step.spared > instance.spec.retry.max + 1:
            yield f"step {name} of {run.run_id}: had {step.tries} tries"
        if step.state is StepState.RUNNING:
            live += 1
            if state.jobs.get(step.job_id) != (run.run_id, name):
                yield f"step {name} of {run.run_id}: runs without a job"
        elif step.state is StepState.READY:
            ready.add(name)
        left += not step.state.ended
    yield from _noted(run, ready, live, left)
    if live > spec_of(state, run).limits.parallel:
        yield f"run {run.run_id}: {live} jobs run"


def _noted(run: Run, ready: set[str], live: int, left: int) -> Iterator[str]:
    """Counts that a run notes of its steps and that differ from these."""
    for what, noted, counted in (("left", run.left, left), ("live", run.live, live)):
        if noted != counted:
            yield f"run {run.run_id}: {noted} steps are noted as {what}, {counted} are"
    if {*run.ready} != ready or len(run.ready) != len(ready):
        yield f"run {run.run_id}: {len(run.ready)} steps are noted as ready, {len(ready)} are"
    if not left:
        yield f"run {run.run_id}: lives without steps"
