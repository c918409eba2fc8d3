"""Reads what the node and its gangs use every so often, in a thread of its own.

1. Read the gangs' processes, the node's counters and the GPUs.
2. Hand each gang's points to `publish`, and keep the node's part for the next heartbeat.

A driver that hangs keeps this thread alone. A cycle that fails is logged, and the next one is
tried: metrics of a system must not end a rank.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import structlog

from gangline_schemas.events.heartbeats import NodeUse

from .gpus import GpuReader
from .node import node_totals
from .points import Capacity, Reading, gang_points, node_use
from .processes import GangPlace, totals_of

log = structlog.get_logger(__name__)

Publish = Callable[[str, str, int, Sequence[tuple[str, float]]], None]
"""Of a job and its team, at a Unix time in milliseconds, these metrics."""


class UsageWatch:
    """One thread from `start` to `stop`; `newest` may be asked for by any thread."""

    def __init__(
        self,
        folder: Path,
        has: Capacity,
        gpus: Sequence[int],
        interval_s: float,
    ) -> None:
        """`folder` lies on the disk whose space counts; `gpus` are indexes of NVML."""
        self._folder, self._has, self._interval_s = folder, has, interval_s
        self._gpus = GpuReader(gpus)
        self._before: Reading | None = None
        self._newest: NodeUse | None = None
        self._ended = threading.Event()

    @property
    def newest(self) -> NodeUse | None:
        """The node's use of the last interval."""
        return self._newest

    def start(self, gangs: Callable[[], Sequence[GangPlace]], publish: Publish) -> None:
        """Begin to read; both are called from the thread."""
        threading.Thread(
            target=self._watch, args=(gangs, publish), name="usage", daemon=True
        ).start()

    def stop(self) -> None:
        """Read no more. A reading that hangs is left behind."""
        self._ended.set()

    def _watch(self, gangs: Callable[[], Sequence[GangPlace]], publish: Publish) -> None:
        first = True  # this reading is for what counts from it
        while not self._ended.is_set():
            try:
                self.read(() if first else gangs(), publish)
            except Exception:
                log.exception("usage.not_read")
            first = False
            self._ended.wait(self._interval_s)

    def read(self, places: Sequence[GangPlace], publish: Publish) -> None:
        """One cycle."""
        at = datetime.now(UTC)
        now = Reading(node_totals(self._folder), totals_of(places), self._gpus.read())
        before, self._before = self._before, now
        self._newest = node_use(before, now, at)
        time_ms = time.time_ns() // 1_000_000
        for place in places:
            if place.ranks:
                values = list(gang_points(place, before, now, self._has))
                publish(place.key.job_id, place.team, time_ms, values)
