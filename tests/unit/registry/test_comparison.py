"""Scores of two versions, item by item: counts, bounds, and the largest differences."""

from __future__ import annotations

import pytest

from gangline_registry.core.model import Compare
from gangline_registry.core.scores import described, encode
from gangline_registry.service.comparison import BOOTSTRAPPED, compare
from gangline_schemas.models import ITEM_SCORE_MAX, SuiteComparison

Scores = dict[str, float]


def compared(candidate: Scores, baseline: Scores, resamples: int = 1000) -> SuiteComparison:
    own, other = (described("nlp", encode(one), one) for one in (candidate, baseline))
    asked = Compare("nlp", "lm", 2, 1, "qa", own, other, 0.95, 0, resamples)
    return compare(asked, candidate, baseline)


def test_scores_of_0_and_1_are_counted_and_items_of_one_alone_are_named() -> None:
    found = compared({"a": 1, "b": 1, "c": 0}, {"a": 0, "b": 1, "d": 1})
    assert found.paired is not None
    assert (found.paired.items, found.paired.wins, found.paired.losses) == (2, 1, 0)
    assert found.unpaired == 2
    assert "no items in common" in compared({"a": 1}, {"b": 1}).problem


@pytest.mark.parametrize("items", [1, 50, BOOTSTRAPPED + 1])
def test_the_bounds_hold_the_mean_and_the_largest_scores_fit(items: int) -> None:
    names = [f"q{number}" for number in range(items)]
    found = compared(
        dict.fromkeys(names, ITEM_SCORE_MAX), dict.fromkeys(names, -ITEM_SCORE_MAX)
    ).means
    assert found is not None
    assert found.difference == pytest.approx(2 * ITEM_SCORE_MAX)
    mixed = {name: float(number % 7) for number, name in enumerate(names)}
    found = compared(mixed, dict.fromkeys(names, 0.5)).means
    assert found is not None
    assert found.low <= found.difference <= found.high
