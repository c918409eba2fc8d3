"""A copy of a changing value, made again when a reader needs it and the value has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")
_WAIT_S = 0.002


class OnDemand(Generic[ValueT]):
    """`copy` is called with the lock held, by a reader or by a writer if a reader waits."""

    def __init__(self, lock: threading.Lock, copy: Callable[[], ValueT]) -> None:
        self._lock = lock
        self._copy = copy
        self._value = copy()
        self._changes = self._copied = 0
        self._wanted = False

    def changed(self) -> None:
        """With the lock held: marks the copy as old, and makes one if a reader waits."""
        self._changes += 1
        if self._wanted:
            self._renew()

    def now(self) -> ValueT:
        """A copy with all changes up to now. A busy writer makes it for a reader that waits."""
        changes = self._changes
        while self._copied < changes:
            self._wanted = True
            if self._lock.acquire(timeout=_WAIT_S):
                try:
                    self._renew()
                finally:
                    self._lock.release()
        return self._value

    def _renew(self) -> None:
        self._wanted = False
        if self._copied != self._changes:
            self._value, self._copied = self._copy(), self._changes
