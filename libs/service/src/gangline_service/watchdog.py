"""Ends a process whose cycle hangs, after it noted the input that hung."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Protocol

import structlog

from gangline_bus.ports import BusError

log = structlog.get_logger(__name__)

HANG_LIMIT_S = 12.0  # two calls of 5 s may time out in one cycle
LOST_LIMIT_S = 1.0
LOOK_EVERY_S = 0.5
DEAF_LIMIT_S = 30.0  # above the hang limit and what noting the input may take


class Watched(Protocol):
    """The interface of a loop to its watchdog, which reads it from its own thread."""

    def check_connection(self) -> None:
        """Raise BusError when the bus was lost."""

    def blame_hang(self, frame: FrameType | None) -> None:
        """Note which input hangs; `frame` is that of the loop's thread."""


class Watchdog:
    """Ends the process when a cycle hangs, as a client that lost its broker can.

    A cycle hangs when it takes longer than `HANG_LIMIT_S`, or `LOST_LIMIT_S` with the bus lost. For
    hung Python code `blame_hang` first notes the input, so that it is skipped in the end. C code
    that holds the interpreter's lock lets no thread run: then faulthandler's timer, which needs no
    lock, ends the process after `DEAF_LIMIT_S`, and the next process is cautious.

    The stacks of all threads go to stderr first.
    """

    def __init__(self, end: Callable[[], object] = lambda: os._exit(1)) -> None:
        self._cycle: tuple[float, Watched] | None = None
        self._loop_thread = threading.get_ident()
        self._end = end
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @contextlib.contextmanager
    def over(self, loop: Watched) -> Iterator[None]:
        """Watch over one cycle of a loop, on the thread that made this watchdog."""
        self._cycle = (time.monotonic(), loop)
        faulthandler.dump_traceback_later(DEAF_LIMIT_S, exit=True)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._cycle = None

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_EVERY_S):
            cycle = self._cycle
            if cycle is None:
                continue
            taken_s, lost = time.monotonic() - cycle[0], _raises(cycle[1].check_connection)
            if taken_s > (LOST_LIMIT_S if lost else HANG_LIMIT_S):
                log.critical("a cycle hangs; ending the process", after_s=taken_s, bus_lost=lost)
                faulthandler.dump_traceback(sys.stderr)
                if not lost:
                    frames = sys._current_frames()  # noqa: SLF001 - the only way to a thread's
                    cycle[1].blame_hang(frames.get(self._loop_thread))
                sys.stderr.flush()
                self._end()
                return


def _raises(check: Callable[[], None]) -> bool:
    try:
        check()
    except BusError:
        return True
    return False
