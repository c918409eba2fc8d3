"""Runs: their curves, history and comparison."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue

from gangline_schemas.api.base import Answer, Body
from gangline_schemas.api.jobs import State
from gangline_schemas.events.requests import Tags

Axis = Literal["step", "time", "tokens"]
"""The x axis of curves: steps, seconds since the run's start, or trained tokens."""
Sampling = Literal["bucket", "lttb"]
"""How curves are thinned: buckets of steps, or Largest Triangle Three Buckets."""
RunKind = Literal["all", "job"]
"""Runs of jobs and those that MLflow clients made, or of jobs alone."""
MAX_COMPARED = 50
"""Runs of a comparison."""
MAX_TAGS = 100
"""Of a run in answers, the first by name; requests may set any number."""


class RunCreated(Answer):
    """The run that a submission started."""

    run_id: str
    state: State


class Restored(Answer):
    """The run that resumes from the checkpoint: the same one, or a new one for an ended run."""

    run_id: str
    step: int
    from_run: str
    state: State


class Point(Answer):
    """The steps first_step..step of a curve: the value of `step`, lowest and highest of all."""

    first_step: int
    step: int
    time: datetime
    x: float = Field(description="Place on the axis: steps, seconds or tokens.")
    value: float
    low: float
    high: float
    smoothed: float | None = Field(default=None, description="If smoothing was asked for.")


class Curve(Answer):
    """One metric of one run."""

    run_id: str
    name: str
    points: list[Point]


class Curves(Answer):
    """Curves over the same widths of steps."""

    curves: list[Curve]


class OverlayCurve(Answer):
    """One metric of one run as columns; their entries of one place are a point of `Curve`.

    Values have five significant digits.
    """

    run_id: str
    name: str
    step: list[int]
    x: list[float] = Field(description="Places on the axis: steps, seconds or tokens.")
    value: list[float]
    low: list[float]
    high: list[float]


class Overlay(Answer):
    """Curves over the same widths of steps; a run without the metric has none."""

    curves: list[OverlayCurve]


class StepMetrics(Answer):
    """A rank's report of one step; in history the attempt and the rank are not known."""

    step: int
    time_ms: int
    metrics: dict[str, float]
    attempt: int | None = None
    rank: int | None = None


class Run(Answer):
    """One run from history."""

    run_id: str
    team: str
    project: str
    name: str
    user: str
    state: str
    reason: str
    attempt: int
    restarts: int
    gpus: int
    priority: int
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    gpu_seconds: float
    gpu_model: str = Field(
        default="", description="Of the newest attempt; empty where it is not known."
    )
    cost: float | None = Field(
        default=None,
        description="Of the GPU-seconds, by the gateway's GPU_PRICES; null where some model has "
        "no price.",
    )
    strategy: str
    code_ref: str
    data_snapshot: str
    hyperparameters: dict[str, str]
    tags: dict[str, str] = Field(default_factory=dict, description="As users set them.")


class TagsBody(Body):
    """Tags to set on a run."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"tags": {"stage": "production", "draft": None}}]}
    )
    tags: Tags = Field(description="By name; null removes a tag.")


class Tagged(Answer):
    """The tags that were set, and null for those that were removed. Lists show them soon after."""

    run_id: str
    tags: dict[str, str | None]


class Difference(Answer):
    """A field of the configuration that is not the same in all runs."""

    field: str
    values: dict[str, JsonValue] = Field(description="By run; null where it is unset.")


class Final(Answer):
    """A metric at its last step."""

    step: int
    value: float
    low: float = Field(description="The lowest value that any attempt reported: the best loss.")
    high: float = Field(description="The highest value that any attempt reported.")


class RunPage(Answer):
    """Runs, newest first."""

    runs: list[Run]
    cursor: str | None
    metrics: dict[str, dict[str, Final]] = Field(
        default_factory=dict, description="By name, then by run; empty unless asked for."
    )


class Resources(Answer):
    """Means over a run's time and its nodes, by node agents' system metrics."""

    gpu_utilization: float | None = Field(default=None, description="Percent.")
    gpu_sm_activity: float | None = Field(default=None, description="Percent.")
    gpu_memory: float | None = Field(default=None, description="Percent.")
    gpu_power_w: float | None = Field(default=None, description="Of one GPU, in watts.")
    cpu: float | None = Field(default=None, description="Percent of a node's CPUs.")
    memory_mb: float | None = Field(default=None, description="Of one node.")
    memory_peak_mb: float | None = Field(default=None, description="The highest of any node.")


class ResourcePoint(Answer):
    """The same over a part of a run's time, and its total at the part's end."""

    time: datetime
    x: float = Field(description="Seconds since the run's start.")
    gpu_utilization: float | None = None
    gpu_sm_activity: float | None = None
    gpu_memory: float | None = None
    gpu_power_w: float | None = None
    cpu: float | None = None
    memory_mb: float | None = None
    gpu_hours: float = Field(description="Until then, of attempts that have ended.")
    cost: float | None = Field(description="Of these, by the price of the newest attempt's GPUs.")


class ResourceCurve(Answer):
    """Resources that one run used over its time."""

    run_id: str
    points: list[ResourcePoint]


class ResourceCurves(Answer):
    """Runs without system metrics are left out."""

    curves: list[ResourceCurve]


AxisKind = Literal["param", "attribute", "metric"]


class ParallelAxis(Answer):
    """One axis of parallel coordinates: of numbers with a range, or of texts."""

    kind: AxisKind
    name: str
    texts: list[str] = Field(description="Its texts, sorted; empty: an axis of numbers.")
    low: float | None
    high: float | None


class ParallelRun(Answer):
    """A run's place on each axis, in their order; null where it has no value."""

    run_id: str
    name: str
    state: str
    values: list[float | str | None]


class Parallel(Answer):
    """Runs on parallel axes: parameters that differ, GPU-hours, costs, final metrics."""

    axes: list[ParallelAxis]
    runs: list[ParallelRun]


class Comparison(Answer):
    """Runs side by side."""

    runs: list[Run]
    differences: list[Difference]
    same: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Fields of the configuration that are set to one value in all runs.",
    )
    metrics: dict[str, dict[str, Final]] = Field(description="By name, then by run.")
    resources: dict[str, Resources] = Field(
        default_factory=dict, description="By run; those without system metrics are left out."
    )
    curves: list[Curve]
