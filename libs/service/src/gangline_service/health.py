"""The health of a service: is it alive, is it ready, and if not, why."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One thing that the service needs, as it last reported it."""

    name: str
    ok: bool
    detail: str = ""


class Health:
    """Checks and heartbeat of one process; every method may be called from any thread.

    The main loop calls `beat` at least once in `beat_timeout_s` seconds, counted from the
    start, also while it replays its log or waits for the bus. `clock` gives monotonic seconds.
    """

    def __init__(
        self, *, beat_timeout_s: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.beat_timeout_s = beat_timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._checks: dict[str, Check] = {}
        self._last_beat = clock()

    def expect(self, *names: str) -> None:
        """Checks that must be reported before the service is ready."""
        with self._lock:
            for name in names:
                self._checks.setdefault(name, Check(name, ok=False, detail="not reported yet"))

    def set(self, name: str, ok: bool, detail: str = "") -> None:  # noqa: FBT001
        """Report a check; the service is ready only while all checks are ok."""
        with self._lock:
            self._checks[name] = Check(name, ok, detail)

    def beat(self) -> None:
        """The main loop is turning."""
        self._last_beat = self._clock()

    def beat_age_s(self) -> float:
        """Seconds since the last beat, or since the start."""
        return self._clock() - self._last_beat

    def alive(self) -> bool:
        """Whether the main loop has beaten within its time."""
        return self.beat_age_s() <= self.beat_timeout_s

    def checks(self) -> tuple[Check, ...]:
        """All checks, by name."""
        with self._lock:
            return tuple(self._checks[name] for name in sorted(self._checks))

    def ready(self) -> bool:
        """Whether at least one check is reported and all are ok."""
        checks = self.checks()
        return bool(checks) and all(check.ok for check in checks)
