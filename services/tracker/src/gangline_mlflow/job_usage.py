"""The GPU-seconds and the cost of a job, as metrics of its MLflow run. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pydantic import Field

from gangline_schemas.base import Model
from gangline_schemas.gpu_prices import GpuPrices
from gangline_schemas.system_metrics import PLATFORM

GPU_SECONDS, COST = (PLATFORM + name for name in ("gpu_seconds", "cost"))


class NewPoint(NamedTuple):
    """A point of a metric; `step` is the attempt."""

    name: str
    step: int
    time_ms: int
    value: float


class Allocated(NamedTuple):
    """From here on a job uses GPUs of this model; "" where it is not known."""

    model: str


class Released(NamedTuple):
    """An attempt has ended, and used so much."""

    attempt: int
    at_ms: int
    gpu_seconds: float


class Usage(Model):
    """The GPU-seconds of a job so far."""

    model: str = ""
    """Of the newest attempt's GPUs."""
    gpu_seconds: Mapping[str, float] = Field(default_factory=dict)
    """By model."""


def charge(
    usage: Usage, events: Iterable[Allocated | Released], prices: GpuPrices
) -> tuple[Usage, list[NewPoint]]:
    """The usage after these events, and the new sums.

    The cost becomes NaN when an attempt used GPUs without a price.
    """
    model, seconds, points = usage.model, dict(usage.gpu_seconds), []
    for event in events:
        if isinstance(event, Allocated):
            model = event.model
            continue
        was_known = bool(seconds) and prices.cost(seconds) is not None
        seconds[model] = seconds.get(model, 0.0) + event.gpu_seconds
        values = {GPU_SECONDS: sum(seconds.values())}
        cost = prices.cost(seconds)
        if cost is not None or was_known:
            values[COST] = math.nan if cost is None else cost
        points += [
            NewPoint(name, event.attempt, event.at_ms, value) for name, value in values.items()
        ]
    return Usage(model=model, gpu_seconds=seconds), points
