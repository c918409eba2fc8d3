"""Alerts, silences and notifications."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue

from gangline_schemas.alerts import AlertRule, AlertSubject, Cause, Severity
from gangline_schemas.api.base import OPEN_WORD, Answer, Body
from gangline_schemas.base import Identifier
from gangline_schemas.limits import Few, Label

_EXAMPLE: dict[str, JsonValue] = {"rule": "queue-wait", "team": "nlp", "hours": 4}


class Alert(Answer):
    """An alert; `resolved_at` is null while its condition holds."""

    number: int
    rule: Annotated[AlertRule, OPEN_WORD]
    level: str = Field(default="", description="A further threshold of the rule; mostly empty.")
    subject: str = Field(description="A job's id, `cluster`, or MODEL@ALIAS.")
    team: str = Field(description="Of the job or model; empty: the whole cluster.")
    severity: Annotated[Severity, OPEN_WORD]
    value: float = Field(description="As it was raised, in the unit of the threshold.")
    threshold: float
    message: str
    cause: Annotated[Cause, OPEN_WORD] | None = Field(description="The likely one, if known.")
    raised_at: datetime
    resolved_at: datetime | None
    silence: int | None = Field(description="The silence that covers it.")
    targets: list[str] = Field(description="The receivers that are notified.")


class AlertList(Answer):
    """Alerts, the newest first."""

    alerts: list[Alert]


class Threshold(Answer):
    """One field of a rule; names that end in `_s` are seconds."""

    name: str
    value: float
    description: str


class RuleRow(Answer):
    """A rule, or a team's own form of it."""

    rule: Annotated[AlertRule, OPEN_WORD]
    level: str = Field(default="", description="A further threshold of the rule.")
    team: str = Field(description="Empty: for all teams that have no form of their own.")
    about: Annotated[Literal["job", "cluster", "model"], OPEN_WORD]
    description: str
    enabled: bool
    severity: Annotated[Severity, OPEN_WORD]
    thresholds: list[Threshold]


class RuleList(Answer):
    """The rules of alerts."""

    rules: list[RuleRow]


class SilenceBody(Body):
    """Which alerts to silence: those that fit all fields, or the one with this number."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})
    alert: Few | None = Field(default=None, description="The alert's rule, team and subject.")
    rule: AlertRule | None = None
    team: Identifier | None = Field(default=None, description="Required, unless an admin asks.")
    subject: AlertSubject | None = Field(
        default=None, description="A job's id, `cluster`, or MODEL@ALIAS."
    )
    hours: float = Field(default=4, gt=0, le=24 * 365)
    comment: Label = ""


class Silence(Answer):
    """A silence that holds."""

    number: int
    rule: Annotated[AlertRule, OPEN_WORD] | None
    team: str | None
    subject: str | None
    until: datetime
    comment: str
    user: str
    begun_at: datetime


class SilenceList(Answer):
    """Silences that hold, by number."""

    silences: list[Silence]


class SentNotification(Answer):
    """A notification, and how far its delivery is."""

    notification: str = Field(description="Its id, also the `webhook-id` of each try.")
    target: str = Field(description="The receiver.")
    team: str
    about: str = Field(description="A job's id, or the rule of its alerts.")
    alerts: int = Field(description="Alerts that it lists or counts.")
    state: Annotated[Literal["due", "deferred", "delivered", "failed"], OPEN_WORD]
    tries: int
    text: str = Field(description="The receiver's answer, or why the last try failed.")
    due_at: datetime
    next_at: datetime | None = Field(description="When it is tried again.")
    ended_at: datetime | None


class NotificationList(Answer):
    """Notifications, the newest first."""

    notifications: list[SentNotification]
