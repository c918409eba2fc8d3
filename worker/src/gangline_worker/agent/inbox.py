"""Where all threads leave what happened, for the one thread that owns the core."""

from __future__ import annotations

import threading
from collections import deque

from .model import Input

_LIMIT = 10_000


class Inbox:
    """A queue in order of arrival. An exception in it ends the process."""

    def __init__(self) -> None:
        self._items: deque[Input | BaseException] = deque()
        self._changed = threading.Condition()

    def put(self, item: Input | BaseException) -> None:
        """Add without waiting."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def put_when_room(self, item: Input) -> None:
        """Add once there is room: for what users' processes say, which has no bound."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) < _LIMIT)
            self._items.append(item)
            self._changed.notify_all()

    def take(self, timeout_s: float) -> list[Input]:
        """All there is, waiting up to `timeout_s` for the first. Raises what a thread left."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._items), timeout_s)
            items = list(self._items)
            self._items.clear()
            self._changed.notify_all()
        found: list[Input] = []
        for item in items:
            if isinstance(item, BaseException):
                raise item
            found.append(item)
        return found
