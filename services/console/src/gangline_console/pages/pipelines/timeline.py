"""The steps of a run on a time axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gangline_schemas.api.pipelines import StepRow

MOST_BARS = 60
_SHORTEST = timedelta(seconds=1)
_THIN = 0.6
"""Percent of the axis that a bar has at least."""


@dataclass(frozen=True)
class Bar:
    """When a step ran: `left` and `width` in percent of the axis."""

    step: StepRow
    left: float
    width: float
    took_s: float


@dataclass(frozen=True)
class Timeline:
    """Bars in the order of their starts; `more`: those that are left out."""

    bars: tuple[Bar, ...]
    whole_s: float
    more: int


def timeline(steps: Sequence[StepRow], now: datetime) -> Timeline | None:
    """The steps that ran; None if none has. Hits of the cache take no time."""
    ran = [
        (step.started_at, step)
        for step in steps
        if step.started_at is not None and not step.hit and step.job_id
    ]
    if not ran:
        return None
    ran.sort(key=lambda pair: (pair[0], pair[1].name))
    first = ran[0][0]
    last = max(step.ended_at or now for _, step in ran)
    whole = max(_SHORTEST, last - first)
    bars = [_bar(step, begun, first, whole, now) for begun, step in ran[:MOST_BARS]]
    return Timeline(tuple(bars), whole.total_seconds(), len(ran) - len(bars))


def _bar(step: StepRow, begun: datetime, first: datetime, whole: timedelta, now: datetime) -> Bar:
    took = max(timedelta(0), (step.ended_at or now) - begun)
    left = 100 * ((begun - first) / whole)
    width = min(100 - left, max(_THIN, 100 * (took / whole)))
    return Bar(step, round(left, 2), round(width, 2), took.total_seconds())
