"""Tests of paired scores, from counts alone. No numpy: every process may import it."""

from __future__ import annotations

import math

_NEGLIGIBLE = 1e-18


def mcnemar_p(wins: int, losses: int) -> float:
    """One-sided exact McNemar test: P(X >= wins) for X ~ Binomial(wins + losses, 1/2).

    Small: the candidate is better. 1.0 without a difference. Cost: O(sqrt(wins + losses)).
    """
    if wins <= losses:
        return 1.0 - _upper_tail(losses + 1, wins + losses) if losses else 1.0
    return _upper_tail(wins, wins + losses)


def _upper_tail(first: int, count: int) -> float:
    """P(X >= first) for X ~ Binomial(count, 1/2), where first > count / 2."""
    if first > count:
        return 0.0
    log_term = math.lgamma(count + 1) - math.lgamma(first + 1) - math.lgamma(count - first + 1)
    term = math.exp(log_term - count * math.log(2))
    total, place = 0.0, first
    while place <= count and term > _NEGLIGIBLE * total:
        total += term
        term *= (count - place) / (place + 1)
        place += 1
    return total


def not_worse_p(wins: int, losses: int, items: int, margin: float) -> float:
    """One-sided score test of Tango (1998) for paired proportions.

    The null hypothesis: the candidate's share of right items is lower by `margin` or more. Small:
    it is not. `margin` lies in (0, 1); above 1 nothing is worse. Without items: 1.0.
    """
    if items <= 0:
        return 1.0
    if margin >= 1:
        return 0.0
    delta = -margin
    a = 2.0 * items
    b = -wins - losses + (2.0 * items - wins + losses) * delta
    c = -losses * delta * (1.0 - delta)
    share = (math.sqrt(max(0.0, b * b - 4.0 * a * c)) - b) / (2.0 * a)
    variance = items * (2.0 * share + delta * (1.0 - delta))
    gain = wins - losses - items * delta
    if variance <= 0:
        return 0.0 if gain > 0 else 1.0
    return 0.5 * math.erfc(gain / math.sqrt(2.0 * variance))
