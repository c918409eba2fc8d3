"""Virtual time: a heap of (time, order, action), named random streams, and a hash of what happened.

Nothing here or below reads a wall clock; two runs of one plan do the same things in the same order.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random

START = datetime(2026, 1, 1, tzinfo=UTC)


class Violation(Exception):
    """Something that must never happen did, or something that must happen did not."""


class Engine:
    """The clock, the queue of what is to come, and the trace of what was."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.now_s = 0.0
        self._utc_at_s, self._utc = 0.0, START
        self.seed = seed
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._hash = hashlib.sha256()
        self._keep = keep_trace
        self.trace: list[str] = []
        self.counts: dict[str, int] = {}

    @property
    def utc(self) -> datetime:
        """The present as a date."""
        if self._utc_at_s != self.now_s:
            self._utc_at_s, self._utc = self.now_s, START + timedelta(seconds=self.now_s)
        return self._utc

    @property
    def trace_hash(self) -> str:
        """sha256 over all notes so far, in hex."""
        return self._hash.hexdigest()

    def stream(self, name: str) -> Random:
        """A random stream of its own: what others draw does not change what it gives."""
        return Random(f"{self.seed}/{name}")

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later; actions of the same moment happen in the order of these calls."""
        self._order += 1
        heapq.heappush(self._heap, (self.now_s + max(0.0, delay_s), self._order, action))

    def note(self, *parts: object) -> None:
        """Write down what happened now."""
        line = f"{self.now_s:.4f} " + " ".join(map(str, parts))
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self.count(str(parts[0]))
        if self._keep:
            self.trace.append(line)

    def count(self, what: str) -> None:
        """Count something that happened, to show that it does happen."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def run(self, until_s: float) -> None:
        """Do everything that is due before `until_s`, then stand there."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now_s, _, action = heapq.heappop(heap)
            action()
        self.now_s = max(self.now_s, until_s)
