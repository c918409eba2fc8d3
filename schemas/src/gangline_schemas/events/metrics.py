"""gangline.metrics: points and tags of MLflow runs, and of jobs those by node agents.

A run's records are in one partition, so its removal follows its points.
"""

from __future__ import annotations

import sys
from typing import Annotated, ClassVar, Self

from pydantic import Field, StringConstraints, model_validator

from gangline_schemas.base import Event, Identifier
from gangline_schemas.events.requests import Tags
from gangline_schemas.limits import INT64_MAX, MetricName

POINTS_PER_MESSAGE = 10_000
RunKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""The id of an MLflow run: 32 hexadecimal digits where MLflow made it."""
AnyInt64 = Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)]
LARGEST = sys.float_info.max
AnyFloat = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
"""MLflow keeps an infinity as the largest number."""


class MetricLogged(Event):
    """Points of one MLflow run, by column: entry i of each column belongs to one point."""

    type: ClassVar[str] = "metric.logged"
    run_id: RunKey
    team: Identifier
    name: tuple[MetricName, ...] = Field(min_length=1, max_length=POINTS_PER_MESSAGE)
    step: tuple[AnyInt64, ...] = Field(max_length=POINTS_PER_MESSAGE)
    time_ms: tuple[AnyInt64, ...] = Field(
        max_length=POINTS_PER_MESSAGE, description="The client's Unix time in milliseconds."
    )
    value: tuple[AnyFloat | None, ...] = Field(
        max_length=POINTS_PER_MESSAGE, description="None: not a number."
    )

    @model_validator(mode="after")
    def _columns_are_equally_long(self) -> Self:
        wanted = len(self.name)
        for column in ("step", "time_ms", "value"):
            found = len(getattr(self, column))
            if found != wanted:
                raise ValueError(f"{column} has {found} entries, name has {wanted}")
        return self


class MetricsRemoved(Event):
    """All earlier points of an MLflow run are removed: its user has deleted it, for good."""

    type: ClassVar[str] = "metric.removed"
    run_id: RunKey
    team: Identifier


class TagsLogged(Event):
    """An MLflow client set tags of a job's own run, or removed them."""

    type: ClassVar[str] = "tags.logged"
    run_id: RunKey
    job_id: Identifier
    team: Identifier
    tags: Tags
