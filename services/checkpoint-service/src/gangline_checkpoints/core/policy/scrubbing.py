"""When a committed checkpoint is read again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

AWAY_S = 600.0
"""A store that was away is left alone for so long."""


@dataclass(frozen=True, slots=True)
class Scrubbing:
    """`period_s` after its bytes were last found right a checkpoint is due; 0: never.

    `gap_s` lie between two, whatever is due: each is two events in a log that is kept for ever.
    """

    period_s: float = 24 * 3600.0
    gap_s: float = 10.0

    def due(self, verified_at: datetime, now: datetime) -> bool:
        """Whether a checkpoint that was verified then is to be read again."""
        return self.period_s > 0 and (now - verified_at).total_seconds() >= self.period_s

    def rests(self, ended_at: datetime | None, *, away: bool, now: datetime) -> bool:
        """Whether nothing begins yet, so soon after the last one ended."""
        if ended_at is None:
            return False
        rest_s = max(self.gap_s, AWAY_S) if away else self.gap_s
        return 0 <= (now - ended_at).total_seconds() < rest_s
