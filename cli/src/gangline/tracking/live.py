"""A run that is being logged: its folder, the thread that fills it, the thread that uploads it.

The uploading thread:

1. finds or makes the run on the server;
2. uploads what is in the folder, batch by batch;
3. while the server is away, tries again after 0.5 to 10 s;
4. removes the folder once the run's end is uploaded.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from gangline.tracking.server import Away, Refused, TrackingServer
from gangline.tracking.spool import Spool
from gangline.tracking.uploader import FIRST_RETRY_S, LONGEST_RETRY_S, Uploader
from gangline.tracking.values import Point
from gangline.tracking.writer import Writer

UPLOAD_PERIOD_S: Final = 1.0
PAUSE_S: Final = 0.02
"""Between batches, so that catching up does not slow down the script."""
BATCH_TRIES: Final = 12
"""With these pauses more than a minute, in which a server may restart."""
SAID_AFTER: Final = 2
"""Failures in a row; the server may only have closed a connection."""
DISK_S: Final = 10.0


@dataclass(frozen=True)
class Progress:
    """Points of a run: still in memory, uploaded, left out since there was no room."""

    queued: int = 0
    uploaded: int = 0
    dropped: int = 0


class Sink(Protocol):
    """Where a run's data goes."""

    @property
    def progress(self) -> Progress:
        """How far its points are."""

    def put(self, points: Sequence[Point], step: int, time_ms: int, /) -> None:
        """Take the points of one call; never waits."""

    def record(self, record: Sequence[object], /) -> None:
        """Take what is not a metric (`gangline.tracking.spool`)."""

    def keep_file(self, source: Path, name: str, /) -> None:
        """Take an artifact as it is now. Raises OSError."""

    def close(self, status: str, timeout_s: float, /) -> None:
        """End the run."""


class Nowhere:
    """Takes everything and keeps nothing: a disabled run, another rank, a forked child."""

    def __init__(self, say: Callable[[], None] = lambda: None) -> None:
        """`say` is called each time that something is dropped."""
        self._say = say

    @property
    def progress(self) -> Progress:
        """Nothing is on its way."""
        return Progress()

    def put(self, _points: Sequence[Point], _step: int, _time_ms: int, /) -> None:
        """Drop it."""
        self._say()

    def record(self, _record: Sequence[object], /) -> None:
        """Drop it."""
        self._say()

    def keep_file(self, _source: Path, _name: str, /) -> None:
        """Drop it."""
        self._say()

    def close(self, _status: str, _timeout_s: float, /) -> None:
        """Nothing is open."""


class Kept:
    """A folder that is filled, and not uploaded by this process: mode "offline"."""

    def __init__(self, spool: Spool, note: Callable[[str], None], *, limit_bytes: int) -> None:
        self.spool, self._note = spool, note
        self._writer = Writer(spool, note, limit_bytes=limit_bytes)

    @property
    def progress(self) -> Progress:
        """How far its points are."""
        return Progress(queued=self._writer.queued, dropped=self._writer.dropped)

    def put(self, points: Sequence[Point], step: int, time_ms: int) -> None:
        """Queue points."""
        self._writer.put(points, step, time_ms)

    def record(self, record: Sequence[object]) -> None:
        """Queue a record."""
        self._writer.put_record(record)

    def keep_file(self, source: Path, name: str) -> None:
        """Copy a file into the folder."""
        self._writer.put_record(self.spool.keep_file(source, name))

    def close(self, status: str, _timeout_s: float, /) -> None:
        """Write the end."""
        self._write_end(status)
        self.spool.close()
        self._note(f"kept in {self.spool.folder}; upload it: gangline sync {self.spool.folder}")

    def _write_end(self, status: str) -> None:
        end_ms = time.time_ns() // 1_000_000
        end = ["status", status, end_ms] if self.spool.header.sets_status else ["over"]
        if not self._writer.close(end, DISK_S):
            self._note(f"{self.spool.folder}: the disk did not take the last metrics")
        if dropped := self._writer.dropped:
            self._note(f"{dropped:,} points were left out")


class Live(Kept):
    """A folder that is uploaded while it is filled."""

    def __init__(
        self,
        spool: Spool,
        server: TrackingServer,
        note: Callable[[str], None],
        *,
        limit_bytes: int,
    ) -> None:
        super().__init__(spool, note, limit_bytes=limit_bytes)
        self._server = server
        self.uploader = Uploader(spool, server, note, keep=False, tries=BATCH_TRIES, fresh=True)
        self._wake, self._closing = threading.Event(), threading.Event()
        self._asked, self._over = threading.Event(), threading.Event()
        self.refused: Refused | None = None
        self._was_away, self._failures = False, 0
        self._thread = threading.Thread(target=self._upload, name="gangline-upload", daemon=True)
        self._thread.start()

    @property
    def progress(self) -> Progress:
        """How far its points are."""
        return replace(super().progress, uploaded=self.uploader.points)

    def wait_for_run(self, timeout_s: float) -> bool:
        """Wait for the server's first answer, or that there is none; whether the run is known."""
        self._asked.wait(timeout_s)
        return self.uploader.url is not None

    def say_if_unanswered(self) -> None:
        """Tell the user where the run is kept if the server has not answered yet."""
        if self.uploader.url is None and not self._was_away:
            self._note(f"the server has not answered yet; the run is in {self.spool.folder}")

    def discard(self) -> None:
        """Give up a run that the server refused, with its folder."""
        self._writer.close(None, DISK_S)
        self.spool.close(remove=True)

    def close(self, status: str, timeout_s: float, /) -> None:
        """Write the end, and wait for the upload unless it stands still for `timeout_s`."""
        try:
            self._write_end(status)
            self._closing.set()
            self._wake.set()
            self._wait_for_upload(timeout_s)
        finally:  # Ctrl-C ends the wait
            if not self._over.is_set() or self.refused is not None:
                self._note(
                    f"not all is uploaded: it is kept in {self.spool.folder}; "
                    f"once this process has ended: gangline sync {self.spool.folder}"
                )
        if self.refused is not None:
            self.spool.close()

    def _wait_for_upload(self, timeout_s: float) -> None:
        before, since = -1, time.monotonic()
        while not self._over.wait(0.1):
            if self.uploader.bytes != before:
                before, since = self.uploader.bytes, time.monotonic()
            elif time.monotonic() - since > timeout_s:
                return

    def _upload(self) -> None:
        delay_s = FIRST_RETRY_S
        try:
            while True:
                closing = self._closing.is_set()
                try:
                    more = self.uploader.step()
                except Away as away:
                    self._say_away(away)
                    wait_s = max(away.wait_s, delay_s * random.uniform(0.5, 1.0))  # noqa: S311
                    delay_s = min(LONGEST_RETRY_S, 2 * delay_s)
                    self._wait(wait_s)
                    continue
                delay_s, self._failures = FIRST_RETRY_S, 0
                self._asked.set()
                if self._was_away:
                    self._was_away = False
                    self._note("the server is back")
                if closing and not more:
                    break
                if not closing:
                    self._wait(PAUSE_S if more else UPLOAD_PERIOD_S)
            self.spool.close(remove=True)
        except Refused as refused:
            self.refused = refused
            self._note(f"uploads end: {refused}")
        except Exception as error:  # noqa: BLE001 -- the script continues, and its folder stays
            self.refused = Refused(0, "", repr(error))
            self._note(f"uploads end: {error!r}")
        finally:
            self._server.close()
            self._over.set()
            self._asked.set()

    def _wait(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def _say_away(self, away: Away) -> None:
        self._asked.set()
        self._failures += 1
        if self._failures == SAID_AFTER:
            self._was_away = True
            self._note(f"{away}; what is logged is kept in {self.spool.folder} meanwhile")
