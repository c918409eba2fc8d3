"""Performs effects in a few threads, which are shared out fairly.

Each effect belongs to a share, such as a team. A free thread takes the oldest effect of the share
that has the fewest threads. No share has all of them: another one never waits for its slow work.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

from gangline_bus.decision import EffectDone

THREADS = 4


class ThreadExecutor:
    """Implements `EffectExecutor`. An error of the executor ends the process."""

    def __init__(
        self,
        execute: Callable[[str, object], object],
        share: Callable[[object], str] = lambda _: "",
        *,
        threads: int = THREADS,
    ) -> None:
        self._execute = execute
        self._share = share
        self._most = max(1, threads - 1)
        self._waiting: dict[str, deque[tuple[str, object]]] = {}
        self._busy: dict[str, int] = {}
        self._changed = threading.Condition()
        self._done: queue.SimpleQueue[EffectDone | BaseException] = queue.SimpleQueue()
        for number in range(threads):
            threading.Thread(target=self._work, name=f"effect-{number}", daemon=True).start()

    def submit(self, key: str, effect: object) -> None:
        """Start the work of a key as soon as a thread is free for its share."""
        with self._changed:
            self._waiting.setdefault(self._share(effect), deque()).append((key, effect))
            self._changed.notify()

    def completed(self) -> list[EffectDone]:
        """The effects that were finished since the last call; raises the executor's exception."""
        found: list[EffectDone] = []
        while not self._done.empty():
            item = self._done.get()
            if isinstance(item, BaseException):
                raise item
            found.append(item)
        return found

    def _work(self) -> None:
        while True:
            share, key, effect = self._next()
            try:
                self._done.put(EffectDone(key, self._execute(key, effect)))
            except Exception as error:  # noqa: BLE001  (raised again in the loop's thread)
                self._done.put(error)
            with self._changed:
                self._busy[share] -= 1
                if not self._busy[share]:
                    del self._busy[share]
                self._changed.notify_all()

    def _next(self) -> tuple[str, str, object]:
        with self._changed:
            while True:
                busy = self._busy
                free = [name for name in self._waiting if busy.get(name, 0) < self._most]
                if free:
                    break
                self._changed.wait()
            share = min(free, key=lambda name: busy.get(name, 0))  # of equal ones the oldest
            key, effect = self._waiting[share].popleft()
            left = self._waiting.pop(share)
            if left:
                self._waiting[share] = left  # the others come first
            busy[share] = busy.get(share, 0) + 1
            return share, key, effect
