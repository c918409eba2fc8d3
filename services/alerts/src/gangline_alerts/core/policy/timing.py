"""Times of the service that are the same for all rules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, except `tries`.

    - `settle_s`: after a takeover or late input nothing is judged for so long.
    - `stale_s`: an older measurement of a run or node says nothing.
    - `group_s`: alerts of one rule, team and receiver wait so long for others.
    - `again_s`: least time between two notifications of one group.
    - `first_retry_s`, `longest_retry_s`, `tries`: of a delivery; the waits double.
    - `note_s`: the service notes that it watches; `away_s`: a longer gap counts as away.
    - `count_s`: least time between two counts of saves.
    """

    settle_s: float = 15.0
    stale_s: float = 60.0
    group_s: float = 30.0
    again_s: float = 300.0
    first_retry_s: float = 5.0
    longest_retry_s: float = 3600.0
    tries: int = 12
    note_s: float = 300.0
    away_s: float = 600.0
    count_s: float = 60.0

    def retry_s(self, tries: int) -> float:
        """The wait after so many tries, from 1."""
        return min(self.longest_retry_s, self.first_retry_s * 2.0 ** min(tries - 1, 40))
