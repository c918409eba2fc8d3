"""When processes end, and whether that was before others began."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Self

from chaos.world import Broken

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
POLL_MS = 1000


class Deaths:
    """Waits for the ends of processes in a thread, by their pidfds. Seconds since the boot.

    Raises ProcessLookupError when one of them is gone already.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        for pid in pids:
            os.kill(pid, 0)
        self._watched = {os.pidfd_open(pid): pid for pid in pids}
        self._at_s: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for descriptor in self._watched:
            os.close(descriptor)

    def must_precede(self, pids: Sequence[int]) -> float:
        """The seconds from the last death to the first start of these. Raises Broken if < 0.

        Of these some may have ended; infinity if all have, for then nothing says when they began.
        """
        began_s = min((began for pid in pids if (began := _began_s(pid)) is not None), default=inf)
        alive = sorted(set(self._watched.values()) - set(self._at_s))
        if alive:
            raise Broken(f"{alive} still run, and the job runs elsewhere")
        between_s = began_s - max(self._at_s.values())
        if between_s < 0:
            raise Broken(f"the job ran elsewhere {-between_s:.2f} s before its ranks were dead")
        return between_s

    def _watch(self) -> None:
        poller = select.poll()
        for descriptor in self._watched:
            poller.register(descriptor, select.POLLIN)
        while len(self._at_s) < len(self._watched) and not self._over.is_set():
            for descriptor, _ in poller.poll(POLL_MS):
                self._at_s[self._watched[descriptor]] = time.clock_gettime(time.CLOCK_BOOTTIME)
                poller.unregister(descriptor)


def _began_s(pid: int) -> float | None:
    """When a process was made, to a tick; None if it has ended."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(after_name.split()[19]) / TICKS_PER_S
