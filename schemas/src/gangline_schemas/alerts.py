"""Alerts in common terms: the rules by name, an alert, and the scope of a silence."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from gangline_schemas.base import Identifier, Model, Team, Timestamp
from gangline_schemas.job import JobState
from gangline_schemas.limits import Few, Message, Score

CLUSTER = "cluster"
"""The subject of alerts about the whole cluster, which have no team."""
AlertSubject = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._@-]{0,191}$")]
"""A job's id, `cluster`, or MODEL@ALIAS."""
MAX_RECEIVERS = 1000
"""Receivers of one installation."""


class AlertRule(StrEnum):
    """The conditions that are watched (docs/guides/alerts.md)."""

    CLUSTER_UTILIZATION = "cluster-utilization"
    QUEUE_WAIT = "queue-wait"
    LOW_MFU = "low-mfu"
    FAILED_SAVES = "failed-saves"
    NODE_FAILURES = "node-failures"
    FAILED_JOBS = "failed-jobs"
    DATA_LOADING = "data-loading"
    GPU_ACTIVITY = "gpu-activity"
    DATA_DRIFT = "data-drift"
    DATA_AGE = "data-age"


class Severity(StrEnum):
    """How soon a person must act."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Cause(StrEnum):
    """The likely reason why GPUs are not busy, from the phases of a run's steps."""

    DATA_WAIT = "data wait"
    SYNCHRONISATION = "synchronisation"
    CPU_BOUND = "CPU bound"
    SMALL_BATCH = "small batch"


Level = Annotated[str, StringConstraints(pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$")]
"""The name of a further threshold of a rule, "" for the rule's own."""


class AlertText(Model):
    """An alert as people read it."""

    number: Few = Field(description="Unique in one installation; counts up.")
    rule: AlertRule
    level: Level = Field(default="", description="Of the rule; empty: the rule itself.")
    subject: AlertSubject = Field(description="A job's id, `cluster`, or MODEL@ALIAS.")
    team: Team = Field(default="", description="Of the job or model; empty: the whole cluster.")
    severity: Severity
    value: Score = Field(description="In the unit of the threshold.")
    threshold: Score
    message: Message
    cause: Cause | None = Field(default=None, description="The likely reason, where one is known.")
    raised_at: Timestamp


class JobText(Model):
    """A change of a job's state that its spec's `notify` asks for."""

    job_id: Identifier
    name: Identifier
    team: Identifier
    previous: JobState
    state: JobState
    reason: Message = ""
    changed_at: Timestamp


class SilenceScope(Model):
    """Which alerts a silence covers: those that fit all fields that are given."""

    rule: AlertRule | None = None
    team: Identifier | None = None
    subject: AlertSubject | None = Field(
        default=None, description="A job's id, `cluster`, or MODEL@ALIAS."
    )

    def covers(self, rule: AlertRule, subject: str, team: str) -> bool:
        """Whether an alert is covered."""
        return (
            (self.rule is None or self.rule == rule)
            and (self.team is None or self.team == team)
            and (self.subject is None or self.subject == subject)
        )
