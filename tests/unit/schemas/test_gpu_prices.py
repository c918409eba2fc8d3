"""Prices of GPU-hours: which models a written name stands for, and costs."""

from __future__ import annotations

from gangline_schemas.gpu_prices import GpuPrices


def test_a_family_is_every_model_of_it_and_a_model_has_its_own_price() -> None:
    prices = GpuPrices.of({"A100_80GB": 2.0, "a100": 1.0, "mystery": 3.0})
    assert prices.hour("a100-40gb") == 1.0
    assert prices.hour("a100-80gb") == 2.0
    assert prices.hour("mystery") == 3.0
    assert prices.hour("h100-80gb") is None


def test_the_cost_is_known_where_all_prices_are() -> None:
    prices = GpuPrices.of({"a100": 1.0, "h100-80gb": 3.0})
    assert prices.cost({"a100-40gb": 7200.0, "h100-80gb": 1800.0}) == 3.5
    assert prices.cost({"a100-40gb": 7200.0, "t4-16gb": 1.0}) is None
    assert prices.cost({"": 1.0}) is None
    assert prices.cost({}) == 0.0
    assert GpuPrices().cost({}) is None
