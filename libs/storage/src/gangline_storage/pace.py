"""A limit on bytes per second: a caller that reaches it waits."""

from __future__ import annotations

import io
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PIECE_BYTES = 1 << 20


class Pace:
    """At most `bytes_per_s` on average since `begin`, by all threads together."""

    def __init__(
        self,
        bytes_per_s: float = math.inf,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._pause = pause
        self._lock = threading.Lock()
        self._free_at = clock()

    def begin(self) -> None:
        """Start now: the unused allowance of earlier seconds does not count."""
        with self._lock:
            self._free_at = max(self._free_at, self._clock())

    def spend(self, size_bytes: int) -> None:
        """Wait until so many bytes more may have passed."""
        with self._lock:
            self._free_at += size_bytes / self._bytes_per_s
            wait_s = self._free_at - self._clock()
        if wait_s > 0:
            self._pause(wait_s)


def paced(file: io.BufferedReader, pace: Pace) -> io.BufferedReader:
    """Reads a file no faster than a pace allows."""
    pace.begin()
    return io.BufferedReader(_Paced(file, pace), _PIECE_BYTES)


class _Paced(io.RawIOBase):
    def __init__(self, file: io.BufferedReader, pace: Pace) -> None:
        self._file = file
        self._pace = pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """One piece at a time, so that the users of one pace take turns."""
        read = self._file.readinto(memoryview(buffer)[:_PIECE_BYTES])
        self._pace.spend(read)
        return read
