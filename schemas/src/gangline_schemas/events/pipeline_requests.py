"""Requests about pipelines, and the news that start runs."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from gangline_schemas.base import Event, Identifier
from gangline_schemas.data_use import SnapshotName
from gangline_schemas.limits import Label, User
from gangline_schemas.pipeline_file import Params, PipelineSpec


class PipelineConfigureRequested(Event):
    """Keep this pipeline; an earlier one of the same team and name is replaced."""

    type: ClassVar[str] = "pipeline.configure.requested"
    spec: PipelineSpec
    user: User = "unknown"


class PipelineRemoveRequested(Event):
    """Forget a pipeline. Its runs continue."""

    type: ClassVar[str] = "pipeline.remove.requested"
    team: Identifier
    pipeline: Identifier
    user: User = "unknown"


class PipelinePauseRequested(Event):
    """Let triggers start no runs of a pipeline, or let them again."""

    type: ClassVar[str] = "pipeline.pause.requested"
    team: Identifier
    pipeline: Identifier
    paused: bool = True
    user: User = "unknown"


class RunRequested(Event):
    """Run a pipeline now, with these values of its parameters."""

    type: ClassVar[str] = "pipeline.run.requested"
    team: Identifier
    pipeline: Identifier
    params: Params = Field(default_factory=dict)
    user: User = "unknown"


class RunCancelRequested(Event):
    """End a run: its jobs are asked to stop."""

    type: ClassVar[str] = "pipeline.run.cancel.requested"
    team: Identifier
    run_id: Identifier
    user: User = "unknown"


class RunRetryRequested(Event):
    """Continue a run that failed or was cancelled, from its failed steps."""

    type: ClassVar[str] = "pipeline.run.retry.requested"
    team: Identifier
    run_id: Identifier
    user: User = "unknown"


MAX_SOURCES = 100
"""So many sources of a snapshot are named."""


class SnapshotAnnounced(Event):
    """A team has a new snapshot of data. The same name again is the same news."""

    type: ClassVar[str] = "snapshot.announced"
    team: Identifier
    snapshot: SnapshotName
    place: Label = Field(default="", description="Where it is: a folder or a URL.")
    sources: tuple[Label, ...] = Field(
        default=(), max_length=MAX_SOURCES, description="The files or data that it was made of."
    )
    user: User = "unknown"
