"""gangline.trials: evaluation points of trials, by which studies decide."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from gangline_schemas.base import Event, Identifier
from gangline_schemas.limits import Attempt, MetricName, MetricValue, Step

TRIAL_METRICS = 16
"""So many objectives and constraints a study can have together."""
POINTS_BURST, POINTS_PER_S = 100.0, 1.0
"""So many points of a trial are published at once, and then a second: no program may flood it."""


class TrialReported(Event):
    """A trial's job was evaluated: the metrics that its study asked for, at this step.

    Its rank 0 reported them, or its program logged them to MLflow. Only those that the job's spec
    names under `trial.metrics`. A value that is not finite is null.
    """

    type: ClassVar[str] = "trial.reported"
    job_id: Identifier
    attempt: Attempt
    step: Step
    values: dict[MetricName, MetricValue | None] = Field(
        min_length=1, max_length=TRIAL_METRICS, description="By metric."
    )
