"""How a job reacts to failures of its gang, and to training that goes wrong."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from gangline_schemas.base import Model


class RestartCause(StrEnum):
    """Classes of failure after which a gang may start again; user errors are not among them."""

    NODE = "node"
    PREEMPTION = "preemption"
    HANG = "hang"
    INFRASTRUCTURE = "infrastructure"


class RestartPolicy(Model):
    """How many times, and after what, a gang is started again."""

    max: int = Field(default=3, ge=0, le=1000)
    on: tuple[RestartCause, ...] = Field(default=tuple(RestartCause), max_length=16)


class OnNan(Model):
    """The reaction to a step whose loss or gradient is not finite."""

    skip: int = Field(
        default=3,
        ge=0,
        le=1_000_000,
        description="Such steps in a row whose update is left out; one more fails the attempt.",
    )


class OnSpike(Model):
    """When a loss is out of line with those before it, and what follows."""

    window: int = Field(default=128, ge=16, le=4096, description="Losses that it is compared to.")
    deviations: float = Field(
        default=10.0,
        ge=0.01,
        le=1e9,
        description="Above their median, in median absolute deviations.",
    )
    steps: int = Field(default=10, ge=1, le=1000, description="In a row that are so high.")
    then: Literal["flag", "restart"] = Field(
        default="flag", description="restart: from the last checkpoint before the spike."
    )


class LeaveOut(Model):
    """The samples that a run leaves out, once such a step has sent it back to a checkpoint."""

    before: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="Steps before the first such step whose samples are left out too.",
    )
    samples_max: int = Field(
        default=1_000_000,
        ge=0,
        le=10**12,
        description="Of the job in all; more samples stay in. 0: nothing is left out.",
    )


class TrainingPolicy(Model):
    """The reactions when training goes wrong while every rank is well."""

    on_nan: OnNan = OnNan()
    on_spike: OnSpike = OnSpike()
    leave_out: LeaveOut = LeaveOut()
