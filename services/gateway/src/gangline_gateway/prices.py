"""Costs of runs as SQL over run_list AS r; `GpuPrices.cost` says the same of one run. Pure."""

from __future__ import annotations

from typing import Any

from gangline_schemas.gpu_prices import GpuPrices

_EACH = "(m, s) -> s / 3600 * {gpu_prices:Array(Float64)}[indexOf({gpu_models:Array(String)}, m)]"
COST = (
    "if(length({gpu_models:Array(String)}) = 0 "
    "OR NOT hasAll({gpu_models:Array(String)}, mapKeys(r.gpu_model_seconds)) "
    "OR abs(arraySum(mapValues(r.gpu_model_seconds)) - r.gpu_seconds) > 0.001, NULL, "
    f"arraySum(arrayMap({_EACH}, mapKeys(r.gpu_model_seconds), mapValues(r.gpu_model_seconds))))"
)
"""The cost of a run's GPU-seconds; NULL where the price of some of them is not known."""


def parameters(prices: GpuPrices) -> dict[str, Any]:
    """The parameters of `COST`."""
    return {"gpu_models": list(prices.models), "gpu_prices": list(prices.prices)}
