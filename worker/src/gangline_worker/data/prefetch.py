"""Batches read ahead by a thread, in order, a bounded number of them.

Batches that are ready are no state: the reader of the batches counts positions, and a new start
reads again from there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """Results of `read` for positions `start`, `start + stride`, ...; up to `ahead` are ready."""

    def __init__(self, read: Callable[[int], T], *, start: int, stride: int, ahead: int) -> None:
        """Start the thread; `ahead` is at least 1."""
        if ahead < 1:
            raise ValueError(f"ahead must be at least 1: {ahead}")
        self._read, self._stride, self._ahead = read, stride, ahead
        self._next = start  # the position of the batch that is taken next
        self._ready: deque[T] = deque()
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(start,), daemon=True, name="data")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ready(self, within_s: float) -> bool:
        """Whether `take` has an answer by then: a batch, or an error."""
        with self._changed:
            return self._changed.wait_for(self._has_answer, within_s)

    @property
    def failed(self) -> bool:
        """Whether `take` will raise what reading the next batch did."""
        with self._changed:
            return self._error is not None and not self._ready

    def take(self, position: int) -> T:
        """The batch at `position`, waited for if need be.

        Raises:
            whatever reading it raised, here and in each later call;
            ValueError: it is not the turn of this position; RuntimeError: closed.
        """
        with self._changed:
            if position != self._next:
                raise ValueError(f"position {self._next} comes next, not {position}")
            self._changed.wait_for(self._has_answer)
            if self._ready:
                batch = self._ready.popleft()
                self._next += self._stride
                self._changed.notify_all()
                return batch
            if self._error is not None:
                raise self._error
            raise RuntimeError("the prefetcher is closed")

    def _has_answer(self) -> bool:
        return bool(self._ready) or self._error is not None or self._closed

    def close(self) -> None:
        """End the thread, after the batch that it reads now."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self, position: int) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or len(self._ready) < self._ahead)
                if self._closed:
                    return
            try:
                batch = self._read(position)
            except BaseException as error:  # noqa: BLE001 -- raised again where it is waited for
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._ready.append(batch)
                self._changed.notify_all()
            position += self._stride
