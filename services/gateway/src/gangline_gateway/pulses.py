"""Wakes tasks of any event loop from a thread that has news."""

from __future__ import annotations

import asyncio
import threading


class Pulses:
    """One future for each event loop that waits. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.AbstractEventLoop, asyncio.Future[None]] = {}

    def next(self) -> asyncio.Future[None]:
        """Done at the next `wake`; belongs to the running loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            pulse = self._waiting.get(loop)
            if pulse is None or pulse.done():
                pulse = self._waiting[loop] = loop.create_future()
            return pulse

    def wake(self) -> None:
        """Wakes all that wait now."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for loop, pulse in waiting.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_finish, pulse)


def _finish(pulse: asyncio.Future[None]) -> None:
    if not pulse.done():
        pulse.set_result(None)
