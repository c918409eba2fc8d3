"""How often a job's checkpoints are saved, which are kept, and where a new attempt starts."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from gangline_schemas.base import Model
from gangline_schemas.limits import INT53_MAX, MetricName

_PATH_PART = re.compile(r"^(?!\.{1,2}$)[A-Za-z0-9._-]{1,200}$")


class BestCheckpoint(Model):
    """Keep the checkpoint that is best by a reported metric."""

    metric: MetricName
    mode: Literal["min", "max"] = "min"


class Retention(Model):
    """Which committed checkpoints are kept; the newest healthy one always is."""

    latest: int = Field(default=3, ge=1, le=1000)
    best: BestCheckpoint | None = None
    every: int | None = Field(
        default=None,
        ge=1,
        le=INT53_MAX,
        description="Also the first one of each so many steps, for good.",
    )


class Incremental(Model):
    """A save writes only the chunks that changed since an earlier one of its attempt."""

    full_every: int = Field(
        default=10, ge=2, le=1000, description="Each so many saves one is written whole."
    )


class CheckpointPolicy(Model):
    """How often checkpoints are saved, which are kept, and where a new attempt starts."""

    path: str | None = Field(
        default=None, max_length=512, description="Folder below the team's prefix in the store."
    )
    interval_minutes: float = Field(default=10.0, ge=1e-4, le=24 * 60)
    adapt_interval: bool = Field(
        default=False, description="Save as often as is advised from costs and failures."
    )
    incremental: Incremental | None = Field(
        default=None, description="Unchanged bytes are not written again; without: whole saves."
    )
    keep: Retention = Retention()
    promote: Literal["off", "final"] | Annotated[int, Field(ge=1, le=INT53_MAX)] = Field(
        default="off",
        description="Which a run of its own validates: the last, or each N-th and the last.",
    )
    resume: str = Field(default="auto", max_length=16, description="auto, never or a step.")

    @property
    def full_every(self) -> int:
        """Each so many saves one is written whole."""
        return 1 if self.incremental is None else self.incremental.full_every

    @field_validator("path")
    @classmethod
    def _path_stays_below(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = re.sub(r"^s3://", "", value).split("/")
        if not all(_PATH_PART.match(part) for part in parts):
            raise ValueError(
                "must be a relative path of letters, digits, '.', '_' and '-' without '..'; "
                "it lies below the team's prefix"
            )
        return value

    @field_validator("resume", mode="before")
    @classmethod
    def _step_is_a_number(cls, value: object) -> object:
        return str(value) if type(value) is int else value

    @field_validator("resume")
    @classmethod
    def _resume_is_known(cls, value: str) -> str:
        if value in {"auto", "never"} or re.fullmatch(r"[0-9]{1,16}", value):
            return value
        raise ValueError("must be auto, never or the step of a checkpoint of this job")
