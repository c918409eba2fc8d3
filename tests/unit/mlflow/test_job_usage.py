"""The sums of a job's GPU-seconds and cost."""

from __future__ import annotations

import math

from gangline_mlflow.job_usage import (
    COST,
    GPU_SECONDS,
    Allocated,
    NewPoint,
    Released,
    Usage,
    charge,
)
from gangline_schemas.gpu_prices import GpuPrices

PRICES = GpuPrices.of({"h100": 3.6, "a100-80gb": 1.8})


def test_attempts_are_summed_by_the_models_that_they_had() -> None:
    usage, points = charge(
        Usage(), [Allocated("h100-80gb"), Released(1, 10, 1000.0), Allocated("a100-80gb")], PRICES
    )
    assert points == [NewPoint(GPU_SECONDS, 1, 10, 1000.0), NewPoint(COST, 1, 10, 1.0)]
    assert usage == Usage(model="a100-80gb", gpu_seconds={"h100-80gb": 1000.0})
    kept = Usage.model_validate_json(usage.model_dump_json())
    usage, points = charge(kept, [Released(2, 20, 500.0)], PRICES)
    assert points == [NewPoint(GPU_SECONDS, 2, 20, 1500.0), NewPoint(COST, 2, 20, 1.25)]
    assert usage.gpu_seconds == {"h100-80gb": 1000.0, "a100-80gb": 500.0}


def test_without_a_price_there_is_no_cost_and_a_known_cost_is_no_longer_one() -> None:
    used = [Allocated("t4-16gb"), Released(2, 20, 500.0)]
    for prices in (PRICES, GpuPrices()):
        assert [point.name for point in charge(Usage(), used, prices)[1]] == [GPU_SECONDS]
    before = Usage(model="h100-80gb", gpu_seconds={"h100-80gb": 1000.0})
    usage, points = charge(before, used, PRICES)
    assert [point.name for point in points] == [GPU_SECONDS, COST]
    assert math.isnan(points[1].value)
    again = charge(usage, [Released(3, 30, 1.0)], PRICES)[1]
    assert [point.name for point in again] == [GPU_SECONDS]
