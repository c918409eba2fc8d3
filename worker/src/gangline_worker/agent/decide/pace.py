"""A rank's pace and how long it has been quiet, for the heartbeats of its node.

Times between steps are by the rank's own clock, so that a late report does not look like a slow
step. The quiet time is by the agent's clock, from the last report of progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from gangline_schemas.events.heartbeats import RankActivity
from gangline_schemas.limits import SECONDS_MAX

WINDOW = 256
BUSY_WINDOW = 32
ENOUGH = 10
"""So many times between steps are known before their spread is reported."""


@dataclass(slots=True)
class Pace:
    """Of one rank. Cost: O(1) a step, O(WINDOW log WINDOW) for a percentile."""

    activity: RankActivity | None = None
    _times_s: deque[float] = field(default_factory=deque)
    _busy_s: deque[float] = field(default_factory=deque)
    _last_ms: int | None = None
    _last_report_s: float | None = None

    def __post_init__(self) -> None:
        """Bound what was read from a handover."""
        self._times_s = deque(self._times_s, maxlen=WINDOW)
        self._busy_s = deque(self._busy_s, maxlen=BUSY_WINDOW)

    def stepped(self, times_ms: Sequence[int], at_s: float) -> None:
        """Steps ended at these times (Unix ms, in order)."""
        for time_ms in times_ms:
            if self._last_ms is not None:
                took_s = (time_ms - self._last_ms) / 1000
                self._times_s.append(min(max(0.0, took_s), SECONDS_MAX))
            self._last_ms = time_ms
        self._last_report_s = at_s

    def worked(self, busy_s: Sequence[float | None]) -> None:
        """Steps took so long before they waited for other ranks."""
        self._busy_s.extend(
            value for value in busy_s if value is not None and 0 <= value <= SECONDS_MAX
        )

    def change_activity(self, activity: RankActivity, at_s: float) -> None:
        """It does something else from now on: the time between counts for no step."""
        self.activity = activity
        self._last_ms = None
        self._last_report_s = at_s

    def forgive(self, at_s: float) -> None:
        """Its agent stood still, and read nothing: it counts as quiet from now on."""
        if self._last_report_s is not None:
            self._last_report_s = at_s

    def quiet_s(self, at_s: float) -> float | None:
        """Seconds since its last report of progress; None: it never reported."""
        return None if self._last_report_s is None else max(0.0, at_s - self._last_report_s)

    def step_p99_s(self) -> float | None:
        """The 99th percentile (nearest rank) of its last steps' times; None: too few yet."""
        if len(self._times_s) < ENOUGH:
            return None
        ordered = sorted(self._times_s)
        return ordered[-(-99 * len(ordered) // 100) - 1]

    def busy_s(self) -> float | None:
        """The median of what its last steps worked; None: too few yet."""
        return median(self._busy_s) if len(self._busy_s) >= ENOUGH else None
