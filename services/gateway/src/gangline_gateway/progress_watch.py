"""Detects a silent live view: steps are reported but no progress is published. Pure."""

from __future__ import annotations

SILENT_S = 15.0
"""Progress follows a step within 1.5 s; a live view that restarts takes about 12 s."""


class ProgressWatch:
    """Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._unanswered_s: float | None = None

    def stepped(self, now_s: float) -> None:
        """A step was reported."""
        if self._unanswered_s is None:
            self._unanswered_s = now_s

    def answered(self) -> None:
        """Progress was published."""
        self._unanswered_s = None

    def silent_s(self, now_s: float) -> float:
        """Seconds for which steps came but no progress; 0 while progress is published."""
        if self._unanswered_s is None:
            return 0.0
        silent_s = now_s - self._unanswered_s
        return silent_s if silent_s >= SILENT_S else 0.0
