"""Runs effects in a few threads, which are shared out fairly.

Each effect belongs to a share, such as a team. A free thread takes the oldest effect of the share
that has the fewest threads. No share has all of them: another one never waits for its slow work.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet

import structlog
from opentelemetry import metrics

from gangline_bus.decision import EffectDone
from gangline_bus.poison import trace_of

THREADS = 4
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
log = structlog.get_logger(__name__)
_FAILED = metrics.get_meter(__name__).create_counter(
    "gangline.effects.failed",
    description="Tries of effects that ended with an unexpected error",
)


class ThreadExecutor:
    """Implements `EffectExecutor`.

    Expected failures are results. After any other error an effect is tried again until it is
    dropped, after pauses that grow from a second to five minutes: it may be about one team's data,
    and others are served.
    """

    def __init__(
        self,
        execute: Callable[[str, object], object],
        share: Callable[[object], str] = lambda _: "",
        *,
        threads: int = THREADS,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._execute = execute
        self._share = share
        self._most = max(1, threads - 1)
        self._first_pause_s = first_pause_s
        self._waiting: dict[str, deque[tuple[str, object]]] = {}
        self._later: list[tuple[float, int, str, object]] = []
        self._numbers = itertools.count()
        self._wanted: set[str] = set()
        self._failures: dict[str, int] = {}
        self._busy: dict[str, int] = {}
        self._changed = threading.Condition()
        self._done: queue.SimpleQueue[EffectDone] = queue.SimpleQueue()
        for number in range(threads):
            threading.Thread(target=self._work, name=f"effect-{number}", daemon=True).start()

    def submit(self, key: str, effect: object) -> None:
        """Start the work of a key as soon as a thread is free for its share."""
        with self._changed:
            self._wanted.add(key)
            self._waiting.setdefault(self._share(effect), deque()).append((key, effect))
            self._changed.notify()

    def drop(self, keys: AbstractSet[str]) -> None:
        """Try these no more. Those that have begun, or wait for their first try, are done."""
        with self._changed:
            self._wanted -= keys
            for key in keys & self._failures.keys():
                del self._failures[key]
            if any(key in keys for _, _, key, _ in self._later):
                self._later = [each for each in self._later if each[2] not in keys]
                heapq.heapify(self._later)

    def completed(self) -> list[EffectDone]:
        """The effects that were finished since the last call."""
        found: list[EffectDone] = []
        while not self._done.empty():
            found.append(self._done.get())
        return found

    def _work(self) -> None:
        while True:
            share, key, effect = self._next()
            try:
                self._done.put(EffectDone(key, self._execute(key, effect)))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                self._try_later(key, effect, error)
            else:
                with self._changed:
                    self._failures.pop(key, None)
            with self._changed:
                self._busy[share] -= 1
                if not self._busy[share]:
                    del self._busy[share]
                self._changed.notify_all()

    def _try_later(self, key: str, effect: object, error: Exception) -> None:
        with self._changed:
            failures = self._failures.get(key, 0) + 1
            _FAILED.add(1)
            log.error("effect failed", effect=key, tries=failures, trace=trace_of(error))
            if key not in self._wanted:
                return
            self._failures[key] = failures
            pause_s = min(LONGEST_PAUSE_S, self._first_pause_s * 2.0 ** min(failures - 1, 20))
            due_s = time.monotonic() + pause_s
            heapq.heappush(self._later, (due_s, next(self._numbers), key, effect))

    def _next(self) -> tuple[str, str, object]:
        with self._changed:
            while True:
                pause_s = self._take_due()
                busy = self._busy
                free = [name for name in self._waiting if busy.get(name, 0) < self._most]
                if free:
                    break
                self._changed.wait(pause_s)
            share = min(free, key=lambda name: busy.get(name, 0))  # of equal ones the oldest
            key, effect = self._waiting[share].popleft()
            left = self._waiting.pop(share)
            if left:
                self._waiting[share] = left  # the others come first
            busy[share] = busy.get(share, 0) + 1
            return share, key, effect

    def _take_due(self) -> float | None:
        """Let effects wait whose pause is over; the seconds until the next one's is."""
        while self._later:
            due_s, _, key, effect = self._later[0]
            pause_s = due_s - time.monotonic()
            if pause_s > 0:
                return pause_s
            heapq.heappop(self._later)
            self._waiting.setdefault(self._share(effect), deque()).append((key, effect))
        return None
