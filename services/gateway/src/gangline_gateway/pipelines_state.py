"""Follows the log of the pipelines service: pipelines, runs and steps for answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from gangline_bus.snapshot import SnapshotStore
from gangline_gateway.followed import Copies, Followed, only_state
from gangline_pipelines.core.decide import PipelineDecider
from gangline_pipelines.core.graph import Instance
from gangline_pipelines.core.model import Pipeline as PipelineFacts
from gangline_pipelines.core.model import Queued, Run, StepRun
from gangline_pipelines.core.naming import run_id, study_id
from gangline_pipelines.core.snapshot import codec
from gangline_pipelines.core.state import PipelineState, graph_of_run, spec_key, step_key, steps_of
from gangline_pipelines.core.triggers import next_time
from gangline_schemas.api.pipelines import (
    Pipeline,
    PipelineDetails,
    PipelineRun,
    RunDetails,
    StepOutput,
    StepRow,
    StepWhy,
    Trigger,
)
from gangline_schemas.catalog import Topic
from gangline_schemas.pipeline_file import PipelineSpec


def followed(store: SnapshotStore | None = None) -> Followed[PipelineState]:
    """The follower of gangline.pipelines. A copy costs the runs it remembers and their steps."""
    return Followed(PipelineDecider(), codec(), _copy, store)


def pipelines_of(copies: Copies[PipelineState]) -> PipelineState:
    """The state of its one partition. Raises NoStateError."""
    return only_state(copies, Topic.PIPELINES)


def _copy(state: PipelineState) -> PipelineState:
    """A copy of what answers read; the other maps are shared and must not be read."""
    return replace(
        state,
        pipelines=dict(state.pipelines),
        specs=dict(state.specs),
        runs=dict(state.runs),
        steps=dict(state.steps),
        queued=dict(state.queued),
        causes=dict(state.causes),
        requests=dict(state.requests),
    )


def pipelines(state: PipelineState, sees: Callable[[str], bool], now: datetime) -> list[Pipeline]:
    """All that the caller sees, by team and name, without their files."""
    last = _last_runs(state)
    found = sorted(state.pipelines.values(), key=lambda held: (held.team, held.name))
    return [
        Pipeline(**_fields(state, held, last.get((held.team, held.name)), now))
        for held in found
        if sees(held.team)
    ]


def pipeline(state: PipelineState, held: PipelineFacts, now: datetime) -> PipelineDetails:
    """A pipeline with its file."""
    last = _last_runs(state).get((held.team, held.name))
    spec = state.specs[spec_key(held.team, held.name, held.revision)]
    return PipelineDetails(**_fields(state, held, last, now), spec=spec)


def _last_runs(state: PipelineState) -> dict[tuple[str, str], Run]:
    """The newest run of each pipeline, by team and name."""
    return {(run.team, run.pipeline): run for run in state.runs.values()}  # as they began


def _fields(
    state: PipelineState, held: PipelineFacts, last: Run | None, now: datetime
) -> dict[str, Any]:
    spec = state.specs[spec_key(held.team, held.name, held.revision)]
    return {
        "team": held.team,
        "name": held.name,
        "description": spec.description,
        "revision": held.revision,
        "user": held.user,
        "configured_at": held.configured_at,
        "paused": held.paused,
        "steps": len(spec.steps),
        "runs": held.runs,
        "queued": len(held.queued),
        "failures": held.failures,
        "triggers": [*_triggers(spec, now, paused=bool(held.paused))],
        "last": run_row(state, last) if last is not None else None,
    }


def runs(
    state: PipelineState, sees: Callable[[str], bool], name: str | None = None
) -> Iterator[PipelineRun]:
    """Runs of a pipeline, or of all; queued ones first, then the newest."""
    for queued_id, queued in reversed(state.queued.items()):
        if sees(queued.team) and name in {None, queued.pipeline}:
            yield _queued(queued_id, queued)
    for run in reversed(state.runs.values()):  # in the order in which they began
        if sees(run.team) and name in {None, run.pipeline}:
            yield run_row(state, run)


def one_run(state: PipelineState, run_id: str) -> PipelineRun | None:
    """A run, or one that is queued; None if there is none."""
    if run_id in state.queued:
        return _queued(run_id, state.queued[run_id])
    run = state.runs.get(run_id)
    return run_row(state, run) if run is not None else None


def queued_details(run_id: str, queued: Queued) -> RunDetails:
    """A run that is queued: it has no steps yet."""
    return RunDetails(**dict(_queued(run_id, queued)), step_rows=[])


def run_row(state: PipelineState, run: Run) -> PipelineRun:
    """A run as answers show it."""
    counts = Counter(str(step.state) for _, step in steps_of(state, run))
    return PipelineRun(
        run_id=run.run_id,
        team=run.team,
        pipeline=run.pipeline,
        number=run.number,
        state=run.state.value,
        trigger=run.cause.trigger,
        kind=run.cause.kind,
        subject=run.cause.subject,
        params=dict(run.cause.params),
        user=run.user,
        reason=run.reason,
        started_at=run.started_at,
        ended_at=run.ended_at,
        steps=dict(counts),
        jobs=run.jobs,
        gpu_seconds=run.gpu_seconds,
        retries=run.retries,
    )


def run_details(state: PipelineState, run: Run) -> RunDetails:
    """A run with its steps."""
    graph = graph_of_run(state, run)
    rows = [_step(run.run_id, graph.instances[name], step) for name, step in steps_of(state, run)]
    row = run_row(state, run)
    values = {name: getattr(row, name) for name in PipelineRun.model_fields}
    return RunDetails(**values, step_rows=rows)


def step_why(state: PipelineState, run: Run, name: str) -> StepWhy | None:
    """A step with its key; None if the run has no such step."""
    step = state.steps.get(step_key(run.run_id, name))
    if step is None:
        return None
    row = _step(run.run_id, graph_of_run(state, run).instances[name], step)
    values = {name: getattr(row, name) for name in StepRow.model_fields}
    return StepWhy(**values, key=step.key, parts=dict(step.parts))


def _step(run_id: str, instance: Instance, step: StepRun) -> StepRow:
    known = instance.spec.study is not None and step.tries > 0
    study = study_id(run_id, instance.name, step.tries) if known else ""
    return StepRow(
        name=instance.name,
        step=instance.step,
        index=instance.index,
        state=step.state.value,
        needs=list(instance.needs),
        why=step.why,
        hit=step.hit,
        job_id=step.job_id if step.job_id != study else "",
        study_id=study,
        tries=step.tries,
        reason=step.reason,
        starts_from=step.starts_from,
        outputs=[
            StepOutput(
                name=name,
                digest=made.digest,
                size_bytes=made.size_bytes,
                files=made.files,
                value=made.value,
            )
            for name, made in step.outputs.items()
        ],
        gpu_seconds=step.gpu_seconds,
        next_at=step.next_at,
        started_at=step.started_at,
        ended_at=step.ended_at,
    )


def _queued(run_id: str, queued: Queued) -> PipelineRun:
    return PipelineRun(
        run_id=run_id,
        team=queued.team,
        pipeline=queued.pipeline,
        number=0,
        state="queued",
        trigger=queued.cause.trigger,
        kind=queued.cause.kind,
        subject=queued.cause.subject,
        params=dict(queued.cause.params),
        user=queued.user,
        reason="another run of its pipeline must end first",
        started_at=None,
        ended_at=None,
        steps={},
        jobs=0,
        gpu_seconds=0.0,
        retries=0,
    )


def _triggers(spec: PipelineSpec, now: datetime, *, paused: bool) -> Iterator[Trigger]:
    for name, one in spec.triggers.items():
        next_at = None
        if one.kind == "schedule" and not paused:
            next_at = next_time(one.schedule or "", one.zone, now)
        on = one.snapshot or one.schedule or one.drift or ""
        zone = f" {one.zone}" if one.kind == "schedule" else ""
        yield Trigger(name=name, kind=one.kind, on=f"{on}{zone}", next_at=next_at)


def led_to(state: PipelineState, team: str, snapshot: str) -> list[str]:
    """The runs that the news of a snapshot starts, queues or skips."""
    corpus = snapshot.partition("@")[0]
    return [
        run_id(team, held.name, name, snapshot)
        for held in state.pipelines.values()
        if held.team == team
        for name, one in state.specs[spec_key(team, held.name, held.revision)].triggers.items()
        if one.kind == "snapshot" and fnmatchcase(corpus, one.snapshot or "")
    ]
