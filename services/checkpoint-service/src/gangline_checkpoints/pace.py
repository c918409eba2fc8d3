"""A bound on how fast something is read: it waits so that no more bytes a second pass."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Pace:
    """At most `bytes_per_s` on average since `begin`. For one thread at a time."""

    def __init__(
        self,
        bytes_per_s: float = math.inf,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._pause = pause
        self._free_at = clock()

    def begin(self) -> None:
        """What was not read before is not made up for."""
        self._free_at = self._clock()

    def spend(self, size_bytes: int) -> None:
        """Wait until so many bytes more may have passed."""
        self._free_at += size_bytes / self._bytes_per_s
        wait_s = self._free_at - self._clock()
        if wait_s > 0:
            self._pause(wait_s)
