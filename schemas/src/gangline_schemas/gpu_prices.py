"""Prices of GPU-hours by model, and the cost of GPU-seconds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from .gpus import covered

WrittenPrices = dict[str, Annotated[float, Field(ge=0)]]
"""As settings have them: the price of an hour of one GPU by model or family."""


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

    def hour(self, model: str) -> float | None:
        """The price of an hour of one GPU; None where it is not known."""
        return self.prices[self.models.index(model)] if model in self.models else None

    def cost(self, seconds: Mapping[str, float]) -> float | None:
        """The cost of GPU-seconds by model; None where the price of some of them is not known."""
        hours = [(self.hour(model), amount / 3600) for model, amount in seconds.items()]
        known = [price * hour for price, hour in hours if price is not None]
        return sum(known) if self.models and len(known) == len(hours) else None
