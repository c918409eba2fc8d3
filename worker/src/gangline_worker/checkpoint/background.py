"""A thread that does what it is given, one thing after the other, at a priority of its own.

An executor of the standard library takes nothing more once the interpreter ends, and that is when
the last save of a script is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """Such a thread; it never ends, and keeps no process from ending."""

    def __init__(self, name: str, niceness: int = 0) -> None:
        """Start it. `niceness` is added to the process's, for this thread alone (Linux)."""
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        Thread(target=self._run, args=(niceness,), name=name, daemon=True).start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do this after all that was submitted before; the future has what it gives or raises."""
        future: Future[T] = Future()
        self._work.put((future, work))
        return future

    def finish(self) -> None:
        """Wait until all is done that was submitted."""
        self.submit(lambda: None).result()

    def _run(self, niceness: int) -> None:
        os.nice(niceness)  # never less than the process has: that would need rights
        while True:
            future, work = self._work.get()
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 -- it is raised where the result is asked
                future.set_exception(error)
