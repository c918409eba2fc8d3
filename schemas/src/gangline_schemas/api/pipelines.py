"""Pipelines, their runs and the steps of these."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue

from gangline_schemas.api.base import OPEN_WORD, OR_NONE, Answer, Body
from gangline_schemas.artifacts import ArtifactFile
from gangline_schemas.base import Identifier
from gangline_schemas.data_use import SnapshotName
from gangline_schemas.events.pipeline_requests import MAX_SOURCES
from gangline_schemas.limits import Label
from gangline_schemas.models import AliasedVersion
from gangline_schemas.pipeline_file import Params, PipelineSpec

RunStateWord = Annotated[
    Literal["queued", "running", "stopping", "succeeded", "failed", "cancelled"], OPEN_WORD
]
StepStateWord = Annotated[
    Literal[
        "pending",
        "checking",
        "ready",
        "running",
        "deferred",
        "succeeded",
        "cached",
        "skipped",
        "failed",
        "blocked",
        "cancelled",
    ],
    OPEN_WORD,
]
_RUN: dict[str, JsonValue] = {"params": {"lr": 0.001}}
_SNAPSHOT: dict[str, JsonValue] = {
    "team": "nlp",
    "snapshot": "web@xxh3-2b977f8c4da702b57fac56f2695b49a2",
    "place": "s3://data/web",
}


class PipelineRun(Answer):
    """A run of a pipeline."""

    run_id: str
    team: str
    pipeline: str
    number: int = Field(description="Of the runs of its pipeline; 0 while it is queued.")
    state: RunStateWord
    trigger: str = Field(description="The trigger's name in the file, or manual.")
    kind: Annotated[Literal["manual", "snapshot", "schedule", "drift"], OPEN_WORD]
    subject: str = Field(description="The snapshot, time, finding or request that started it.")
    params: dict[str, JsonValue]
    user: str
    reason: str
    started_at: datetime | None
    ended_at: datetime | None
    steps: dict[str, int] = Field(description="Numbers of steps by state.")
    jobs: int = Field(description="Jobs that were requested, retries too.")
    gpu_seconds: float
    retries: int = Field(description="How often the run was continued after a failure.")


class Trigger(Answer):
    """A trigger of a pipeline."""

    name: str
    kind: Annotated[Literal["snapshot", "schedule", "drift"], OPEN_WORD]
    on: str = Field(description="The corpus, the schedule or the model.")
    next_at: datetime | None = Field(description="Of a schedule that is not paused.")


class Pipeline(Answer):
    """A pipeline, and its last run."""

    team: str
    name: str
    description: str
    revision: int
    user: str = Field(description="The user that applied the file last.")
    configured_at: datetime
    paused: str = Field(description="Why triggers start nothing; empty: they do.")
    steps: int
    runs: int
    queued: int
    failures: int = Field(description="Triggered runs that failed in a row.")
    triggers: list[Trigger]
    last: PipelineRun | None


class PipelineDetails(Pipeline):
    """A pipeline with its file."""

    spec: Annotated[PipelineSpec | None, OR_NONE]


class PipelineList(Answer):
    """Pipelines by team and name."""

    pipelines: list[Pipeline]


class RunList(Answer):
    """Runs, the newest first."""

    runs: list[PipelineRun]


class StepOutput(Answer):
    """An artifact that a step made."""

    name: str
    digest: str
    size_bytes: int
    files: int
    value: float | None = Field(description="Of a score.")


class OutputFiles(Answer):
    """The files of an artifact, by path."""

    digest: str
    files: list[ArtifactFile]


class StepRow(Answer):
    """A step of a run, or one item of its fan-out."""

    name: str
    step: str = Field(description="Its name in the file.")
    index: int | None = Field(description="The item's number in a fan-out.")
    state: StepStateWord
    needs: list[str]
    why: str = Field(description="Why it is a hit of the cache, or runs.")
    hit: str = Field(description="The run that made its outputs; empty: this one.")
    job_id: str = Field(description="Its last job; empty: none.")
    study_id: str = Field(default="", description="Its last study, if it is one.")
    tries: int
    reason: str
    starts_from: AliasedVersion | None = Field(
        default=None, description="The version that its `resume: NAME@ALIAS` meant."
    )
    outputs: list[StepOutput]
    gpu_seconds: float
    next_at: datetime | None = Field(description="When it is tried again.")
    started_at: datetime | None
    ended_at: datetime | None


class StepWhy(StepRow):
    """A step with its key."""

    key: str
    parts: dict[str, str] = Field(description="Digests of what its outputs depend on.")


class RunDetails(PipelineRun):
    """A run with its steps, each after what it needs."""

    step_rows: list[StepRow]


class RunBody(Body):
    """Values of parameters; others are those of the file."""

    model_config = ConfigDict(json_schema_extra={"example": _RUN})
    params: Params = Field(default_factory=dict)


class PauseBody(Body):
    """Whether triggers start runs."""

    paused: bool = True


class SnapshotBody(Body):
    """A new snapshot of data."""

    model_config = ConfigDict(json_schema_extra={"example": _SNAPSHOT})
    team: Identifier
    snapshot: SnapshotName
    place: Label = Field(default="", description="Where it is: a folder or a URL.")
    sources: tuple[Label, ...] = Field(
        default=(), max_length=MAX_SOURCES, description="The files or data that it was made of."
    )


class Announced(Answer):
    """A snapshot that was announced, and the runs that it started."""

    snapshot: str
    runs: list[str]
