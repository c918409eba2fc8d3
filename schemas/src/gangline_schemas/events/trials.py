"""gangline.trials: evaluations of trials that their programs logged to MLflow."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from gangline_schemas.base import Event, Identifier
from gangline_schemas.limits import Attempt, MetricName, MetricValue, Step

TRIAL_METRICS = 16
"""So many objectives and constraints a study can have together."""


class TrialEvaluated(Event):
    """The base of all evaluations of a trial: the metrics that its study asked for, at this step.

    Only those that the job's spec names under `trial.metrics`. A value that is not finite is null.
    """

    job_id: Identifier
    attempt: Attempt
    step: Step
    values: dict[MetricName, MetricValue | None] = Field(
        min_length=1, max_length=TRIAL_METRICS, description="By metric."
    )


class TrialLogged(TrialEvaluated):
    """A program of a trial's job logged the metrics to MLflow."""

    type: ClassVar[str] = "trial.logged"


class TrialLogsEnded(Event):
    """The job of a trial has ended, and all that its programs logged to MLflow comes before this.

    It may come more than once.
    """

    type: ClassVar[str] = "trial.logs.ended"
    job_id: Identifier
