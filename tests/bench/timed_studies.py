"""The studies service; its loop notes how long it was held. `python timed_studies.py FILE`.

A cycle is held from the end of its poll to its end, without the wait for its commit.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from gangline_bus.decider import DeciderLoop
from gangline_service import deciding
from gangline_studies.__main__ import main

WRITE_EVERY_S = 1.0


class TimedLoop(DeciderLoop[Any]):
    """Keeps the seconds of each cycle with inputs, by the clock and of this thread's CPU."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clock_s: list[float] = []
        self._cpu_s: list[float] = []
        self._written = 0.0
        self._at = (0.0, 0.0)

    def cycle(self, timeout_s: float = 0.2) -> int:
        found = super().cycle(timeout_s)
        self._count()
        if found == 0:
            self._clock_s.pop()
            self._cpu_s.pop()
        if time.monotonic() >= self._written + WRITE_EVERY_S:
            self._written = time.monotonic()
            content = {"clock_s": self._clock_s, "cpu_s": self._cpu_s}
            Path(sys.argv[1]).write_text(json.dumps(content), encoding="utf-8")
        return found

    def _take_one(self, *args: Any) -> bool:
        self._clock_s.append(0.0)
        self._cpu_s.append(0.0)
        self._begin()
        return super()._take_one(*args)

    def _save(self, *args: Any) -> None:
        self._count()
        super()._save(*args)
        self._begin()

    def _begin(self) -> None:
        self._at = (time.perf_counter(), time.thread_time())

    def _count(self) -> None:
        self._clock_s[-1] += time.perf_counter() - self._at[0]
        self._cpu_s[-1] += time.thread_time() - self._at[1]


if __name__ == "__main__":
    deciding.DeciderLoop = TimedLoop  # type: ignore[misc]
    main()
