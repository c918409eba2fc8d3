"""Publishes the evaluation points of a trial, and never more than a study can bear.

Each point is published as it comes. A program that reports its objective with each step gets
POINTS_BURST points, then POINTS_PER_S: the newest, and the last one when the rank ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangline_schemas.events.trials import POINTS_BURST, POINTS_PER_S
from gangline_schemas.events.workers import TrialReported
from gangline_schemas.job import TrialRef
from gangline_schemas.rank_protocol import TrialPoint


@dataclass(slots=True)
class Allowance:
    """How many points of a rank may be published now, and the one that waits."""

    left: float = POINTS_BURST
    counted_s: float | None = None
    held: TrialPoint | None = None

    def take(self, point: TrialPoint, at_s: float) -> TrialPoint | None:
        """The point, if it may be published at this monotonic time; else it waits."""
        since_s = at_s - self.counted_s if self.counted_s is not None else 0.0
        self.left = min(POINTS_BURST, self.left + since_s * POINTS_PER_S)
        self.counted_s = at_s
        if self.left < 1:
            self.held = point
            return None
        self.left -= 1
        self.held = None
        return point

    def take_held(self) -> TrialPoint | None:
        """The point that waits, for the last time."""
        held, self.held = self.held, None
        return held


def reported(
    trial: TrialRef | None, job_id: str, attempt: int, point: TrialPoint | None
) -> TrialReported | None:
    """The event of a point; None: the job is no trial, or none of the point's metrics decides."""
    if trial is None or point is None:
        return None
    values = {name: point.values[name] for name in trial.metrics if name in point.values}
    if not values:
        return None
    return TrialReported(
        job_id=job_id,
        attempt=attempt,
        step=point.step,
        values=values,
    )
