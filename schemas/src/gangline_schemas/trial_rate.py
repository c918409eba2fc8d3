"""How many evaluation points of a trial are published: a burst, then so many a second.

Agents and the MLflow server apply it, so that no program can flood a study.
"""

from __future__ import annotations

from dataclasses import dataclass

POINTS_BURST, POINTS_PER_S = 100.0, 1.0


@dataclass(slots=True)
class PointRate:
    """The points that one trial may publish now."""

    left: float = POINTS_BURST
    counted_s: float | None = None

    def take(self, at_s: float) -> bool:
        """Whether a point may be published at this monotonic time, in seconds; it counts then."""
        since_s = at_s - self.counted_s if self.counted_s is not None else 0.0
        self.left = min(POINTS_BURST, self.left + since_s * POINTS_PER_S)
        self.counted_s = at_s
        if self.left < 1:
            return False
        self.left -= 1
        return True
