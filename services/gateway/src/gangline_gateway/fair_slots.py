"""A few slots for many users: none holds them all, and the next goes to the one with the fewest."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class FairSlots:
    """`in_all` slots, of which one user has at most all but one. May be used from any thread."""

    def __init__(self, in_all: int) -> None:
        self._in_all = in_all
        self._of_one = max(1, in_all - 1)
        self._held: Counter[str] = Counter()
        self._waiting: dict[int, str] = {}
        self._numbers = itertools.count()
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, user: str, wait_s: float) -> Iterator[None]:
        """Holds a slot during the block. Raises TimeoutError if there is none for so long."""
        self._take(user, wait_s)
        try:
            yield
        finally:
            with self._changed:
                self._held[user] -= 1
                if not self._held[user]:
                    del self._held[user]
                self._changed.notify_all()

    def _take(self, user: str, wait_s: float) -> None:
        with self._changed:
            number = next(self._numbers)
            self._waiting[number] = user
            try:
                if not self._changed.wait_for(lambda: self._next() == number, wait_s):
                    raise TimeoutError
                self._held[user] += 1
            finally:
                del self._waiting[number]
                self._changed.notify_all()

    def _next(self) -> int | None:
        """The one that gets the next slot: of the user with the fewest, the one that came first."""
        if self._held.total() >= self._in_all:
            return None
        held = ((self._held[user], number) for number, user in self._waiting.items())
        return min((number for number in held if number[0] < self._of_one), default=(0, None))[1]
