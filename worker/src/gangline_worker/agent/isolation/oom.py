"""Whether the kernel ended a process for memory, by what its control group (version 2) counts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from .groups import group_of

WINDOW_S = 5.0
"""A kill that is longer ago than twice this explains no death. To free much memory takes time."""


class OomKills:
    """The kernel's kills for memory in the group of one process.

    Where gangs have no groups of their own it is the agent's, so older kills are not its own.
    """

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid = pid
        self._clock = clock
        self._group: Path | None = None
        self._counted_at = self._clock()
        self._before = self._then = self._now()

    def count(self) -> None:
        """To be called while it runs, every second or so."""
        if self._clock() - self._counted_at >= WINDOW_S:
            self._counted_at = self._clock()
            self._before, self._then = self._then, self._now()

    def lately(self) -> bool:
        """Whether there was one lately. Only a pod has collected the process already."""
        group, kills = self._now()
        before, known = self._before
        return kills > (known if group == before else 0)  # it has entered its gang's meanwhile

    def _now(self) -> tuple[Path | None, int]:
        """Its group, and how many processes were killed for memory there and below."""
        with contextlib.suppress(OSError):  # a process that was collected has none any more
            self._group = group_of(self._pid)
        with contextlib.suppress(OSError, ValueError):
            if self._group is not None:
                for entry in (self._group / "memory.events").read_text("ascii").splitlines():
                    name, kills = entry.split()
                    if name == "oom_kill":
                        return self._group, int(kills)
        return None, 0
