"""Prices of GPU-hours by model, and costs of runs as SQL over run_list AS r. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gangline_schemas.gpus import covered

_EACH = "(m, s) -> s / 3600 * {gpu_prices:Array(Float64)}[indexOf({gpu_models:Array(String)}, m)]"
COST = (
    "if(length({gpu_models:Array(String)}) = 0 "
    "OR NOT hasAll({gpu_models:Array(String)}, mapKeys(r.gpu_model_seconds)) "
    "OR abs(arraySum(mapValues(r.gpu_model_seconds)) - r.gpu_seconds) > 0.001, NULL, "
    f"arraySum(arrayMap({_EACH}, mapKeys(r.gpu_model_seconds), mapValues(r.gpu_model_seconds))))"
)
"""The cost of a run's GPU-seconds; NULL where the price of some of them is not known."""


@dataclass(frozen=True, slots=True)
class GpuPrices:
    """Prices by exact model. A written name may stand for several; one that names fewer counts."""

    models: tuple[str, ...] = ()
    prices: tuple[float, ...] = ()

    @classmethod
    def of(cls, written: Mapping[str, float]) -> GpuPrices:
        """The prices as written in the settings, by model or family."""
        found: dict[str, float] = {}
        for name, price in sorted(written.items(), key=lambda item: -len(covered(item[0]))):
            found |= dict.fromkeys(covered(name), price)
        return cls(tuple(found), tuple(found.values()))

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of `COST`."""
        return {"gpu_models": list(self.models), "gpu_prices": list(self.prices)}

    def hour(self, model: str) -> float | None:
        """The price of an hour of one GPU; None where it is not known."""
        return self.prices[self.models.index(model)] if model in self.models else None
