"""Prices of GPU-hours: which models a written name stands for."""

from __future__ import annotations

from gangline_gateway.prices import GpuPrices


def test_a_family_is_every_model_of_it_and_a_model_has_its_own_price() -> None:
    prices = GpuPrices.of({"A100_80GB": 2.0, "a100": 1.0, "mystery": 3.0})
    assert prices.hour("a100-40gb") == 1.0
    assert prices.hour("a100-80gb") == 2.0
    assert prices.hour("mystery") == 3.0
    assert prices.hour("h100-80gb") is None
    assert GpuPrices.of({}).parameters == {"gpu_models": [], "gpu_prices": []}
