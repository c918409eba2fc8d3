"""From memory to disk: a bounded queue, and the thread that writes it to a run's folder.

The thread, every `PERIOD_S` and when it is woken:

1. takes what is queued, in order;
2. makes lines of it, and appends them to the folder;
3. if the disk refuses them, keeps them and tries again later.

If the queue or the folder is full, new metrics are left out and counted. The last value of each of
them is written at the end. Nothing on disk is removed for them, so the server gets that in order
and without holes.
"""

from __future__ import annotations

import json
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from gangline.tracking.spool import Spool, line_of
from gangline.tracking.values import Point

PERIOD_S: Final = 0.2
QUEUE_POINTS: Final = 100_000
DROPPED_TAG: Final = "sdk.dropped_points"
_AT_ONCE: Final = 500
_RETRY_S: Final = 1.0

Logged = tuple[Sequence[Point], int, int]
"""Points, their step, their Unix time in ms."""


class Writer:
    """The queue and the thread of one folder. `put` belongs to one caller at a time."""

    def __init__(
        self,
        spool: Spool,
        note: Callable[[str], None],
        *,
        limit_bytes: int,
    ) -> None:
        self._spool, self._note = spool, note
        self._limit_bytes, self._limit_points = limit_bytes, QUEUE_POINTS
        self._queue: deque[Logged | bytes] = deque()
        self._put = self._taken = 0
        self._shed = self._unwritten = 0
        self._last: dict[str, tuple[Point, int, int]] = {}
        self._wake = threading.Event()
        self._closing = False
        self._end: Sequence[object] | None = None
        self._failed = ""
        self._thread = threading.Thread(target=self._run, name="gangline-write", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Points that are not on disk yet."""
        return self._put - self._taken

    @property
    def dropped(self) -> int:
        """Points that were left out."""
        return self._shed + self._unwritten

    def put(self, points: Sequence[Point], step: int, time_ms: int) -> None:
        """Queue the points of one call; never waits."""
        count = len(points)
        if self._put - self._taken + count > self._limit_points:
            self._shed += count
            self._leave_out((points, step, time_ms), "the disk does not keep up")
            return
        self._put += count
        self._queue.append((points, step, time_ms))

    def put_record(self, record: Sequence[object]) -> None:
        """Queue what is not a metric; it always has room."""
        self._queue.append(line_of(record))
        self._wake.set()

    def close(self, end: Sequence[object] | None, timeout_s: float) -> bool:
        """Write all that is queued and the end; False: the disk did not take it in time."""
        self._end = end
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self._failed

    def _leave_out(self, logged: Logged, why: str) -> None:
        points, step, time_ms = logged
        if not self._last:
            self._note(f"{why}: new metrics are left out, except the last value of each")
        for point in points:
            self._last[point[0]] = (point, step, time_ms)

    def _run(self) -> None:
        while True:
            self._wake.wait(_RETRY_S if self._failed else PERIOD_S)
            self._wake.clear()
            closing = self._closing
            written = self._drain()
            if closing:
                if written:
                    self._write_end()
                return

    def _drain(self) -> bool:
        """Write what is queued; False: the disk refuses it, and it stays queued."""
        queue = self._queue
        while queue:
            lines: list[bytes] = []
            left_out: list[Logged] = []
            count = points = 0
            room = self._limit_bytes - self._spool.written + self._spool.removed
            for item in [queue[at] for at in range(min(_AT_ONCE, len(queue)))]:
                count += 1
                if isinstance(item, bytes):
                    lines.append(item)
                    continue
                points += len(item[0])
                made = b"".join(lines_of(item))
                room -= len(made)
                if room >= 0:
                    lines.append(made)
                else:
                    left_out.append(item)
            if not self._append(lines):
                return False
            for logged in left_out:
                self._unwritten += len(logged[0])
                self._leave_out(logged, "the run's folder is full")
            self._taken += points
            for _ in range(count):
                queue.popleft()
        return True

    def _append(self, lines: Sequence[bytes]) -> bool:
        try:
            if lines:
                self._spool.append(b"".join(lines))
        except OSError as error:
            if not self._failed:
                self._note(f"{self._spool.folder}: {error.strerror}; trying again")
            self._failed = str(error)
            return False
        self._failed = ""
        return True

    def _write_end(self) -> None:
        lines = [
            line
            for point, step, ms in self._last.values()
            for line in lines_of(([point], step, ms))
        ]
        if self.dropped:
            lines.append(line_of(["tags", {DROPPED_TAG: str(self.dropped)}]))
        if self._end is not None:
            lines.append(line_of(self._end))
        self._append(lines)


def lines_of(logged: Logged) -> list[bytes]:
    """Points as MLflow's log-batch takes them, a line each."""
    points, step, time_ms = logged
    place = f',"timestamp":{time_ms},"step":{step}}}\n'
    return [
        f'{{"key":{_quoted(name)},"value":{_json(float(value))}{place}'.encode()
        for name, value in points
    ]


@lru_cache(10_000)
def _quoted(name: str) -> str:
    return json.dumps(name)


def _json(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    if math.isnan(value):
        return '"NaN"'
    return '"Infinity"' if value > 0 else '"-Infinity"'
