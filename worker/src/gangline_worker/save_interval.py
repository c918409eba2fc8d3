"""When a job's interval between saves has passed. It may change while the rank runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

INTERVAL_ENV = "GANGLINE_CHECKPOINT_INTERVAL_S"


def named_interval_s() -> float | None:
    """The interval that the agent named for this attempt; None outside of the platform."""
    named = os.environ.get(INTERVAL_ENV)
    return float(named) if named else None


class SaveInterval:
    """Counts from its making, and again from each save."""

    def __init__(
        self,
        interval_s: float | None,
        changed_s: Callable[[], float | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed_s` gives another one once it was changed; without any it never passes."""
        self._interval_s, self._changed_s, self._clock = interval_s, changed_s, clock
        self._last = clock()

    def passed(self) -> bool:
        """Whether a save is due."""
        interval_s = self._changed_s() or self._interval_s
        return interval_s is not None and self._clock() - self._last >= interval_s

    def begin(self) -> None:
        """A save has begun."""
        self._last = self._clock()
