"""Where all threads leave what happened, for the one thread that owns the core."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .decide.inputs import Input

T = TypeVar("T")
_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class _Work(Generic[T]):
    do: Callable[[], T]
    done: Future[T] = field(default_factory=Future)

    def run(self) -> None:
        try:
            self.done.set_result(self.do())
        except BaseException as error:  # noqa: BLE001 -- it is the asker's
            self.done.set_exception(error)


class Inbox:
    """A queue in order of arrival. An exception in it ends the process."""

    def __init__(self) -> None:
        self._items: deque[Input | BaseException | _Work[Any]] = deque()
        self._changed = threading.Condition()
        self._limit = _LIMIT

    def put(self, item: Input | BaseException) -> None:
        """Add without waiting."""
        self._add(item)

    def put_when_room(self, item: Input) -> None:
        """Add once there is room: for what users' processes say, which has no bound."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) < self._limit)
            self._items.append(item)
            self._changed.notify_all()

    def make_room(self) -> None:
        """Keep no thread waiting for room any more: the threads that fill it will be stopped."""
        with self._changed:
            self._limit = len(self._items) + 1_000_000
            self._changed.notify_all()

    def call(self, work: Callable[[], T]) -> T:
        """Have the thread that takes do it, and wait: what it starts lives as long as it does."""
        asked = _Work(work)
        self._add(asked)
        return asked.done.result()

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
            if isinstance(item, _Work):
                item.run()
            else:
                found.append(item)
        return found

    def _add(self, item: Input | BaseException | _Work[Any]) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()
