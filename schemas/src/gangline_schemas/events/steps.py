"""gangline.steps: metrics of ranks, step by step."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from gangline_schemas.base import Event, Identifier
from gangline_schemas.limits import (
    METRICS_PER_STEP,
    Attempt,
    MetricName,
    MetricValue,
    Rank,
    Step,
    UnixMs,
)

STEPS_PER_MESSAGE = 10_000
Columns = Annotated[
    dict[
        MetricName, Annotated[tuple[MetricValue | None, ...], Field(max_length=STEPS_PER_MESSAGE)]
    ],
    Field(max_length=METRICS_PER_STEP),
]
"""Metrics by column: an entry for each step, None where a step has none."""


class WorkerStep(Event):
    """Metrics of consecutive steps of one rank, by column: entry i belongs to `step[i]`."""

    type: ClassVar[str] = "worker.step"
    run_id: Identifier
    team: Identifier
    attempt: Attempt
    rank: Rank
    step: tuple[Step, ...] = Field(min_length=1, max_length=STEPS_PER_MESSAGE)
    time_ms: tuple[UnixMs, ...] = Field(
        max_length=STEPS_PER_MESSAGE, description="Unix time of each step's end in milliseconds."
    )
    metrics: Columns

    @model_validator(mode="after")
    def _columns_are_equally_long(self) -> Self:
        wanted = len(self.step)
        if len(self.time_ms) != wanted:
            raise ValueError(f"time_ms has {len(self.time_ms)} entries, step has {wanted}")
        for name, column in self.metrics.items():
            if len(column) != wanted:
                raise ValueError(f"metrics.{name} has {len(column)} entries, step has {wanted}")
        return self
