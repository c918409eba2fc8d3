"""The median rule: a trial stops where the median of others was better (Golovin et al., 2017)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from statistics import median

Curve = Sequence[tuple[int, float | None]]
COMPARED = 1000
"""With so many of the newest completed trials a trial is compared."""


def value_at(curve: Curve, step: int) -> float | None:
    """The last value at or before a step; None: there is none, or it was not finite."""
    place = bisect_right(curve, step, key=lambda point: point[0])
    return curve[place - 1][1] if place else None


def is_below_median(own: Curve, others: Iterable[Curve], step: int, sign: int, least: int) -> bool:
    """Whether the trial's best value so far is worse than the median of the others at this step.

    `sign`: 1 if lower is better, -1 if higher is. Fewer than `least` others say nothing.
    """
    held = [sign * value for curve in others if (value := value_at(curve, step)) is not None]
    mine = [sign * value for at, value in own if at <= step and value is not None]
    return len(held) >= least and bool(mine) and min(mine) > median(held)
