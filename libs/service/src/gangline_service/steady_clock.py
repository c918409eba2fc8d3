"""A decider's time of day: a jump of the clock counts only if it lasts.

Durations are differences of this time: how long a job ran, how long a node was silent, which month
is billed. A clock that is wrong for a moment must end nothing. So the machine's clock is compared
with its monotonic clock. While they differ by more than `jump`, the monotonic one counts. A
difference that lasts for `lasting` is believed: the clock was corrected, or the machine was paused.
The time never goes back, except when such a correction is believed.

A process that begins has no other clock to compare with: it believes its first reading. Machines of
services run NTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import structlog

log = structlog.get_logger(__name__)

JUMP = timedelta(minutes=1)
"""So much more or less than has passed is a jump; NTP slews what is less."""
LASTING = timedelta(minutes=5)
"""A jump is believed when it has lasted for so long."""


def _now() -> datetime:
    return datetime.now(UTC)


class SteadyClock:
    """See the module. `wall` is the time of day, `elapsed_s` seconds that never go back."""

    def __init__(
        self,
        wall: Callable[[], datetime] = _now,
        elapsed_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._elapsed_s = wall, elapsed_s
        self._time, self._at_s = wall(), elapsed_s()
        self._off = timedelta(0)
        self._off_since_s: float | None = None

    def __call__(self) -> datetime:
        """The time, in UTC."""
        at_s = self._elapsed_s()
        expected = self._time + timedelta(seconds=at_s - self._at_s)
        wall = self._wall()
        off = wall - expected
        if abs(off) <= JUMP:
            self._off_since_s = None
            self._time = max(self._time, wall)
        elif self._has_lasted(off, at_s):
            log.warning("a jump of the clock is believed", by_s=off.total_seconds())
            self._off_since_s = None
            self._time = wall
        else:
            self._time = expected
        self._at_s = at_s
        return self._time

    def _has_lasted(self, off: timedelta, at_s: float) -> bool:
        """Whether the clock has been off by about as much for long enough."""
        if self._off_since_s is None or abs(off - self._off) > JUMP:
            self._off, self._off_since_s = off, at_s
            log.warning(
                "the clock jumped; it is not believed unless that lasts",
                by_s=off.total_seconds(),
                lasting_s=LASTING.total_seconds(),
            )
        return at_s - self._off_since_s >= LASTING.total_seconds()
