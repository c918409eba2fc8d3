"""Rates of one attempt of a run, from its newest steps. Pure: times come with the steps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gangline_schemas.limits import SECONDS_MAX

WINDOW_MS = 30_000
PART_MS = 1000
"""Steps that end within a second of each other share an entry, so a window has few entries."""
_PARTS_MIN = 3
"""So many entries are kept even if they are older: of slow steps too, two must be there."""
_AMOUNT_MAX = 1e24


@dataclass(frozen=True, slots=True)
class StepSample:
    """The part of a step's report that rates are made of."""

    step: int
    time_ms: int
    tokens_per_s: float | None = None
    data_wait_s: float | None = None
    step_s: float | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """Means over the window; None: not known."""

    step_s: float | None = None
    tokens_per_s: float | None = None
    data_wait_share: float | None = None

    def or_else(self, before: Rates) -> Rates:
        """These rates; where one is not known, the one from before."""
        return Rates(
            before.step_s if self.step_s is None else self.step_s,
            before.tokens_per_s if self.tokens_per_s is None else self.tokens_per_s,
            before.data_wait_share if self.data_wait_share is None else self.data_wait_share,
        )


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.total += value
            self.count += 1


@dataclass(slots=True)
class _Part:
    """Steps of about a second. `time_ms` is the end of the newest, `begin_ms` of the first."""

    first_step: int
    begin_ms: int
    step: int
    time_ms: int
    tokens_per_s: _Mean = field(default_factory=_Mean)
    step_s: _Mean = field(default_factory=_Mean)
    waited_s: float = 0.0
    worked_s: float = 0.0
    """The time of those steps that report both how long they took and how long they waited."""


class Window:
    """The steps of the last 30 seconds, by the clock of the rank that reports them.

    Memory: one entry a second. If that clock is set back by more than this, all begins again.
    """

    def __init__(self) -> None:
        self._parts: deque[_Part] = deque()

    def add(self, sample: StepSample) -> None:
        """Take the next step; its number is higher than that of all earlier ones."""
        part = self._part(sample)
        part.step = sample.step
        part.time_ms = max(part.time_ms, sample.time_ms)
        part.tokens_per_s.add(sample.tokens_per_s)
        part.step_s.add(sample.step_s)
        if sample.step_s is not None and sample.data_wait_s is not None:
            part.waited_s += sample.data_wait_s
            part.worked_s += sample.step_s

    def rates(self) -> Rates:
        """Means over the window. Cost: O(its entries)."""
        return Rates(
            _within(self._step_s(), SECONDS_MAX),
            _within(_mean([part.tokens_per_s for part in self._parts]), _AMOUNT_MAX),
            self._data_wait_share(),
        )

    def _part(self, sample: StepSample) -> _Part:
        parts = self._parts
        if parts and parts[-1].time_ms - sample.time_ms > WINDOW_MS:
            parts.clear()  # the clock was set back
        if not parts or sample.time_ms >= parts[-1].begin_ms + PART_MS:
            parts.append(_Part(sample.step, sample.time_ms, sample.step, sample.time_ms))
            oldest_ms = sample.time_ms - WINDOW_MS
            while len(parts) > _PARTS_MIN and parts[0].time_ms < oldest_ms:
                parts.popleft()
        return parts[-1]

    def _step_s(self) -> float | None:
        """Seconds a step between the window's ends; of a single step the time that it reports."""
        if not self._parts:
            return None
        first, last = self._parts[0], self._parts[-1]
        steps, took_ms = last.step - first.first_step, last.time_ms - first.begin_ms
        if steps > 0 and took_ms > 0:
            return took_ms / 1000 / steps
        return _mean([part.step_s for part in self._parts])

    def _data_wait_share(self) -> float | None:
        waited_s = sum(part.waited_s for part in self._parts)
        worked_s = sum(part.worked_s for part in self._parts)
        return min(1.0, waited_s / worked_s) if worked_s > 0 and waited_s >= 0 else None


def _mean(means: list[_Mean]) -> float | None:
    count = sum(mean.count for mean in means)
    return sum(mean.total for mean in means) / count if count else None


def _within(value: float | None, most: float) -> float | None:
    """A script may report any number: what no rate can be is not known."""
    return value if value is not None and 0 <= value <= most else None
