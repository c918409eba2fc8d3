"""The limits of a team: GPUs, GPU models, a monthly budget, jobs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, ValidationInfo, field_validator

from gangline_schemas.base import Identifier, Model
from gangline_schemas.limits import Gpus, ShortText


def _as_type_limits(value: Any) -> Any:
    """`[h100, a100]` and `{h100: 32, a100: null}` as people write them in a file."""
    if isinstance(value, dict):
        return [{"gpu_type": name, "gpu_limit": limit} for name, limit in value.items()]
    if isinstance(value, list | tuple):
        return [{"gpu_type": item} if isinstance(item, str) else item for item in value]
    return value


class GpuTypeLimit(Model):
    """A GPU model that a team may use, and how many of it at once (None: as its other limits)."""

    gpu_type: Annotated[ShortText, StringConstraints(to_lower=True)]
    gpu_limit: Gpus | None = None


Surplus = Literal["keep", "reclaim_by_weight"]
"""The rule for GPUs that a team has above its part.

`keep`: it keeps them until its jobs end. `reclaim_by_weight`: teams below their own part may take
them back.
"""
LEAST_WEIGHT = 1e-6


class TeamLimits(Model):
    """The limits of a team, without its name."""

    gpu_limit: Gpus = Field(description="GPUs that the team may have at once.")
    gpu_guarantee: Gpus = Field(default=0, description="GPUs it is owed; the fair share's base.")
    borrow_limit: Gpus = Field(default=0, description="GPUs above the limit while others idle.")
    parent: Identifier | None = Field(
        default=None, description="The team above it, whose limits hold too; none: a root."
    )
    weight: float = Field(
        default=1.0, ge=0, le=1e6, description="Its part of the surplus; 0: it has no claim to it."
    )
    surplus: Surplus | None = Field(
        default=None, description="The rule for GPUs above its part; none: as its parent's."
    )
    gpu_types: Annotated[tuple[GpuTypeLimit, ...], BeforeValidator(_as_type_limits)] = Field(
        default=(), max_length=64, description="GPU models that it may use; empty: its parent's."
    )
    gpu_hours_per_month: float | None = Field(
        default=None, ge=1e-6, le=1e9, description="Budget of each UTC month; none: no budget."
    )
    cpu_limit: float | None = Field(
        default=None, ge=0, le=1e8, description="CPUs of its jobs without GPUs at once; none: all."
    )
    cpu_hours_per_month: float | None = Field(
        default=None,
        ge=1e-6,
        le=1e12,
        description="Budget of each UTC month for jobs without GPUs; none: no budget.",
    )
    job_limit: int = Field(
        default=10_000, ge=1, le=1_000_000, description="Jobs that have not ended, at once."
    )

    @field_validator("gpu_guarantee")
    @classmethod
    def _guarantee_is_within(cls, guarantee: int, info: ValidationInfo) -> int:
        limit = info.data.get("gpu_limit", guarantee)
        if guarantee > limit:
            raise ValueError(f"gpu_guarantee ({guarantee}) is above gpu_limit ({limit})")
        return guarantee

    @field_validator("weight")
    @classmethod
    def _weight_is_none_or_some(cls, weight: float) -> float:
        if 0 < weight < LEAST_WEIGHT:
            raise ValueError(f"{weight} is too small; accepted: 0, or from {LEAST_WEIGHT} up")
        return weight

    @field_validator("gpu_types")
    @classmethod
    def _types_are_named_once(cls, types: tuple[GpuTypeLimit, ...]) -> tuple[GpuTypeLimit, ...]:
        names = [item.gpu_type for item in types]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"names {', '.join(twice)} twice; keep one entry of each model")
        return types


class _Named(Model):
    team: Identifier


class TeamConfig(TeamLimits, _Named):
    """The limits of a team. Its GPUs never pass `gpu_limit + borrow_limit`.

    Teams form a tree by `parent`; a team's GPUs count for each team above it, and a job must fit at
    every level. The rules between teams are checked by `gangline_schemas.teams`.
    """

    # The name is a base of its own: so it stays the first field.

    @property
    def ceiling(self) -> int:
        """The most GPUs that the team can ever use at once."""
        return self.gpu_limit + self.borrow_limit
