"""The tests behind verdicts: against scipy, against published numbers, and on candidates."""

from __future__ import annotations

import os

import numpy as np
import pytest
from scipy.stats import binom

from gangline_registry.core.policy.statistics import mcnemar_p, not_worse_p

ITEMS = 1319
CANDIDATES = int(os.environ.get("GANGLINE_GATE_CANDIDATES", "1000"))
CHANGED = 0.10
"""The share of items on which a candidate and the champion differ."""


def test_mcnemar_is_the_binomial_tail() -> None:
    random = np.random.default_rng(7)
    for _ in range(500):
        count = int(random.choice([1, 3, 10, 100, 1000, 50_000]))
        wins = int(random.integers(0, count + 1))
        assert mcnemar_p(wins, count - wins) == pytest.approx(
            binom.sf(wins - 1, count, 0.5), rel=1e-7, abs=1e-12
        )


@pytest.mark.parametrize(
    ("wins", "losses", "p_value"),
    [(0, 0, 1.0), (4, 0, 1 / 16), (5, 0, 1 / 32), (0, 5, 1.0), (1, 1, 0.75), (3, 1, 5 / 16)],
)
def test_small_tables_by_hand(wins: int, losses: int, p_value: float) -> None:
    assert mcnemar_p(wins, losses) == pytest.approx(p_value)


@pytest.mark.parametrize(
    ("wins", "losses", "items", "margin", "p_value"),
    [
        (0, 0, 100, 0.05, 0.010891),  # z = sqrt(n m / (1 - m))
        (0, 0, 0, 0.05, 1.0),
        (10, 10, 1000, 1.0, 0.0),
        (0, 100, 1000, 0.05, 1.0),
    ],
)
def test_not_worse_by_hand(
    wins: int, losses: int, items: int, margin: float, p_value: float
) -> None:
    assert not_worse_p(wins, losses, items, margin) == pytest.approx(p_value, abs=1e-5)


def tables(gain: float, seed: int) -> list[tuple[int, int]]:
    """Wins and losses of candidates whose accuracy differs from the champion's by `gain`."""
    random = np.random.default_rng(seed)
    shares = [(CHANGED + gain) / 2, (CHANGED - gain) / 2, 1 - CHANGED]
    counts = random.multinomial(ITEMS, shares, size=CANDIDATES)
    return [(int(wins), int(losses)) for wins, losses, _ in counts]


def passed(gain: float, seed: int) -> float:
    return sum(mcnemar_p(*table) <= 0.05 for table in tables(gain, seed)) / CANDIDATES


def test_equal_candidates_seldom_pass_better_and_worse_ones_never() -> None:
    assert passed(0.0, seed=1) <= 0.05
    assert passed(-0.01, seed=2) <= 0.005
    assert passed(0.03, seed=3) >= 0.9


def test_candidates_at_the_margin_seldom_pass_not_worse() -> None:
    worse = [not_worse_p(*table, ITEMS, 0.02) for table in tables(-0.02, seed=4)]
    equal = [not_worse_p(*table, ITEMS, 0.02) for table in tables(0.0, seed=5)]
    assert sum(one <= 0.05 for one in worse) / CANDIDATES <= 0.065  # 5 % and its own noise
    assert sum(one <= 0.05 for one in equal) / CANDIDATES >= 0.7
