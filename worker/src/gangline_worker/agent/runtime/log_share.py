"""How much the ranks of one gang may print on a node, so that a flood takes no core of the agent.

Above it the middle of a flood is left out: it is read, at a bounded pace, and its lines are counted
but not decoded. The newest bytes of each stream are always there, so last words are kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

BYTES_PER_S = 2 * 1024 * 1024
BURST_BYTES = 8 * 1024 * 1024
LINE_BYTES = 100
"""A line counts so much more than its bytes: short ones take the agent as long."""
TAIL_BYTES = 64 * 1024
SKIM_BYTES_PER_S = 32 * 1024 * 1024
"""At this pace a program above the bound is read: it waits for that, some milliseconds a time."""
MOST_REST_S = 0.1


@dataclass(slots=True)
class LogShare:
    """`BYTES_PER_S` on average, and `BURST_BYTES` at once. May be used from any thread.

    Once it is used up, nothing is taken until a second's worth is there again: so lines are left
    out in few long pieces.
    """

    clock: Callable[[], float] = time.monotonic
    _left: float = BURST_BYTES
    _since_s: float = 0.0
    _over: bool = False
    _skimmed_until_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def takes(self, data: bytes) -> bool:
        """Whether these bytes may become lines; if so, they are counted."""
        with self._lock:
            self._gain()
            if self._over:
                return False
            self._left -= len(data) + LINE_BYTES * data.count(b"\n")
            self._over = self._left < 0
            return True

    def has_room(self) -> bool:
        """Whether more may become lines."""
        with self._lock:
            self._gain()
            return not self._over

    def skims(self, data: bytes) -> float:
        """For how many seconds the reader of these bytes, which become no lines yet, rests."""
        with self._lock:
            now_s = self.clock()
            begins_s = max(now_s, self._skimmed_until_s)
            ends_s = begins_s + len(data) / SKIM_BYTES_PER_S
            self._skimmed_until_s = min(ends_s, now_s + MOST_REST_S)
            return self._skimmed_until_s - now_s

    def _gain(self) -> None:
        now_s = self.clock()
        gained = max(0.0, now_s - self._since_s) * BYTES_PER_S
        self._left = min(BURST_BYTES, self._left + gained)
        self._since_s = now_s
        self._over = self._over and self._left < BYTES_PER_S


@dataclass(slots=True)
class Skimmed:
    """Bytes of one stream that are no lines yet: the newest, and counts of those before.

    `hold` bytes after a cut within a line are left out: a secret may be cut there.
    """

    hold: int
    tail: bytes = b""
    lines: int = 0
    size_bytes: int = 0

    def add(self, data: bytes) -> None:
        """Keep the newest bytes, count those that go."""
        whole = self.tail + data
        gone, self.tail = whole[:-TAIL_BYTES], whole[-TAIL_BYTES:]
        self.lines += gone.count(b"\n")
        self.size_bytes += len(gone)

    def settle(self) -> bytes:
        """The newest bytes from the beginning of a line on, if any are gone."""
        if not self.size_bytes:
            return self.tail
        at = self.tail.find(b"\n") + 1
        start = at or min(self.hold, len(self.tail))
        self.lines += 1
        self.size_bytes += start
        return self.tail[start:]


def left_out(skimmed: Skimmed) -> str:
    """The line of a job's log in place of those that are left out."""
    return (
        f"{skimmed.lines} lines ({skimmed.size_bytes / 1e6:.1f} MB) are left out here: the ranks "
        f"of this job on this node print more than {BYTES_PER_S >> 20} MiB a second"
    )
