"""Publishes the evaluation points of a trial, and never more than a study can bear.

Each point is published as it comes, within `PointRate`. Of the others the last one is published
when the rank ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gangline_schemas.events.workers import TrialReported
from gangline_schemas.job import TrialRef
from gangline_schemas.rank_protocol import TrialPoint
from gangline_schemas.trial_rate import PointRate


@dataclass(slots=True)
class Allowance:
    """Which points of a rank may be published now, and the one that waits."""

    rate: PointRate = field(default_factory=PointRate)
    held: TrialPoint | None = None

    def take(self, point: TrialPoint, at_s: float) -> TrialPoint | None:
        """The point, if it may be published at this monotonic time; else it waits."""
        may = self.rate.take(at_s)
        self.held = None if may else point
        return point if may else None

    def take_held(self) -> TrialPoint | None:
        """The point that waits, for the last time."""
        held, self.held = self.held, None
        return held


def reported(
    trial: TrialRef | None, job_id: str, attempt: int, point: TrialPoint | None
) -> TrialReported | None:
    """The event of a point; None: the job is not a trial, or no metric of the point decides."""
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
