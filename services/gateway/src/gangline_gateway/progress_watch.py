"""Detects a silent live view: steps are reported but no progress is published. Pure.

Only a step above the run's published progress counts: the live view publishes nothing for others.
Steps are looked at only while no progress comes and none of them counted yet. So a gateway decodes
about one record of steps in `QUIET_S`.
"""

from __future__ import annotations

from collections import OrderedDict

from gangline_schemas.events.progress import RunProgress
from gangline_schemas.events.steps import WorkerStep

QUIET_S = 2.0
SILENT_S = 15.0
"""Progress follows a step within 1.5 s; after a kill of the live view it takes about 10 s."""
RUNS_MAX = 100_000
"""Runs whose published progress is known, as in the live view; the longest silent go first."""


class ProgressWatch:
    """Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], tuple[int, int, int]] = OrderedDict()
        self._answered_s = float("-inf")
        self._unanswered_s: float | None = None

    def wants_step(self, now_s: float) -> bool:
        """Whether the next report of steps matters."""
        return self._unanswered_s is None and now_s - self._answered_s >= QUIET_S

    def stepped(self, event: WorkerStep, now_s: float) -> None:
        """Steps were reported. They count if the live view must publish the last one."""
        attempt, step, rank = self._known.get((event.team, event.run_id), (-1, -1, event.rank))
        newer = event.attempt > attempt
        further = event.attempt == attempt and event.rank <= rank and max(event.step) > step
        if self._unanswered_s is None and (newer or further):
            self._unanswered_s = now_s

    def answered(self, event: RunProgress, now_s: float) -> None:
        """Progress was published."""
        key = (event.team, event.run_id)
        self._known[key] = (event.attempt, event.step, event.rank)
        self._known.move_to_end(key)
        if len(self._known) > RUNS_MAX:
            self._known.popitem(last=False)
        self._answered_s, self._unanswered_s = now_s, None

    def silent_s(self, now_s: float) -> float:
        """Seconds for which steps came but no progress; 0 while progress is published."""
        if self._unanswered_s is None:
            return 0.0
        silent_s = now_s - self._unanswered_s
        return silent_s if silent_s >= SILENT_S else 0.0
