"""The state of the pipelines service, and what is read from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from gangline_bus.plan import Plan
from gangline_pipelines.core.graph import Graph, graph_of
from gangline_pipelines.core.model import (
    Alias,
    DeleteOutputs,
    Kept,
    Last,
    Pipeline,
    Queued,
    Run,
    StepRun,
    StepState,
    Sweep,
)
from gangline_pipelines.core.naming import pipeline_key
from gangline_schemas.job import RESUME_PROBLEM
from gangline_schemas.pipeline_file import PipelineSpec


@dataclass(slots=True)
class PipelineState:
    """Values are frozen, so that a plan branches the dicts alone.

    - `pipelines`: by `TEAM/NAME`. `specs`: by `TEAM/NAME@REVISION`, while anything uses them.
    - `runs`: by id in the order in which they began, until they are forgotten. `live`: those that
      have not ended. `ended`: others.
    - `steps`: of those runs, by `RUN/STEP`. `jobs`: the step of each job that has not ended.
    - `queued`: runs that wait. `causes`: when the news came (a snapshot, drift) that
      started a run or skipped it; `times` and `requests` say it of the other causes.
    - `times`: up to when each schedule is done, by `TEAM/NAME/TRIGGER`.
    - `kept`: the cache, by `TEAM/KEY`, the oldest first. `last`: by `TEAM/NAME/STEP`.
    - `waiting`: steps whose next try, or whose job's cause or outputs, are waited for.
    - `sweeps`: the last one of each team.
    - `sizes`: of `specs`, in bytes of JSON. `earlier_bytes`: of those that only runs use.
    - `uses`: how many runs began with each key of `specs`. `live_steps`: of each team's live runs.
    - `aliases`: protected ones of models, by `TEAM/NAME@ALIAS`.
    - `requests`: answered ones, each with the reason why it was refused, or "".
    """

    pipelines: dict[str, Pipeline] = field(default_factory=dict)
    specs: dict[str, PipelineSpec] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    live: dict[str, datetime] = field(default_factory=dict)
    ended: dict[str, datetime] = field(default_factory=dict)
    steps: dict[str, StepRun] = field(default_factory=dict)
    jobs: dict[str, tuple[str, str]] = field(default_factory=dict)
    queued: dict[str, Queued] = field(default_factory=dict)
    causes: dict[str, datetime] = field(default_factory=dict)
    times: dict[str, datetime] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)
    last: dict[str, Last] = field(default_factory=dict)
    waiting: dict[str, tuple[str, str]] = field(default_factory=dict)
    sweeps: dict[str, Sweep] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    earlier_bytes: int = 0
    uses: dict[str, int] = field(default_factory=dict)
    live_steps: dict[str, int] = field(default_factory=dict)
    aliases: dict[str, Alias] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Clock:
    """The soft state: the time of the last Tick, and of the one before it."""

    now: datetime | None = None
    before: datetime | None = None
    sweeps: dict[str, DeleteOutputs] = field(default_factory=dict)


PipelinePlan = Plan[PipelineState, Clock]


def step_key(run_id: str, step: str) -> str:
    """The key of a step of a run in the state."""
    return f"{run_id}/{step}"


def spec_key(team: str, pipeline: str, revision: int) -> str:
    """The key of a revision of a pipeline in the state."""
    return f"{pipeline_key(team, pipeline)}@{revision}"


def spec_of(state: PipelineState, run: Run) -> PipelineSpec:
    """The pipeline as it was when the run began."""
    return state.specs[spec_key(run.team, run.pipeline, run.revision)]


def graph_of_run(state: PipelineState, run: Run) -> Graph:
    """The graph of a run's steps."""
    return graph_of(spec_of(state, run))


def unresumed(state: PipelineState, run: Run, name: str) -> str | None:
    """The step from whose checkpoint this one could not start, and failed; None: there is none."""
    step = state.steps[step_key(run.run_id, name)]
    if step.state is not StepState.FAILED or not step.reason.startswith(RESUME_PROBLEM):
        return None
    return graph_of_run(state, run).instances[name].spec.resumed_step


def steps_of(state: PipelineState, run: Run) -> Iterator[tuple[str, StepRun]]:
    """The steps of a run by name, each after what it needs."""
    for name in graph_of_run(state, run).instances:
        yield name, state.steps[step_key(run.run_id, name)]
