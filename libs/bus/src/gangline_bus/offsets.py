"""The input offsets of a loop: which are committed, and when the next ones are due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from gangline_bus.ports import TopicPartition


class InputOffsets:
    """`positions` gives the next offset of each input, without signals: those are never committed.

    Offsets of inputs that led to nothing wait `after_s` for the next transaction. Kafka forgets
    offsets that are not committed again, so those of quiet inputs are committed every `refresh_s`.
    """

    def __init__(
        self,
        positions: Callable[[], dict[TopicPartition, int]],
        *,
        after_s: float,
        refresh_s: float,
    ) -> None:
        self._positions = positions
        self._after_s = after_s
        self._refresh = timedelta(seconds=refresh_s)
        self._saved = positions()
        self._unsaved_since: datetime | None = None
        self._next_refresh: datetime | None = None

    def moved(self) -> dict[TopicPartition, int]:
        """Those beyond what is committed."""
        saved = self._saved
        return {at: to for at, to in self._positions().items() if to > saved[at]}

    def due(self, now: datetime, *, decided: bool) -> dict[TopicPartition, int] | None:
        """The offsets to commit now; None when nothing was decided and all may wait."""
        refresh = self._refresh_is_due(now)
        moved = self._positions() if refresh else self.moved()
        if not decided and not refresh and self._may_wait(moved, now):
            return None
        return moved

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These were committed."""
        self._saved |= offsets
        self._unsaved_since = None

    def _may_wait(self, moved: Mapping[TopicPartition, int], now: datetime) -> bool:
        if not moved:
            return True
        if self._unsaved_since is None:
            self._unsaved_since = now
        waited_s = (now - self._unsaved_since).total_seconds()
        return 0.0 <= waited_s < self._after_s

    def _refresh_is_due(self, now: datetime) -> bool:
        """Counted from the takeover; a clock that went back makes it due, as with Ticks."""
        if self._next_refresh is None:
            self._next_refresh = now + self._refresh
        if now < self._next_refresh <= now + self._refresh:
            return False
        self._next_refresh = now + self._refresh
        return True
