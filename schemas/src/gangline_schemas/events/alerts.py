"""gangline.alerts: alerts, silences, notifications, and the facts that rules need."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gangline_schemas.alerts import (
    MAX_RECEIVERS,
    AlertRule,
    AlertSubject,
    AlertText,
    JobText,
    Level,
    SilenceScope,
)
from gangline_schemas.base import Event, Identifier, Model, Team, Timestamp
from gangline_schemas.data_use import SnapshotName
from gangline_schemas.job import JobState, Notification
from gangline_schemas.limits import (
    GPUS_PER_NODE,
    MAX_NODES,
    Attempt,
    Count,
    Few,
    GangSize,
    GpuIndex,
    Label,
    Message,
    Name,
    Offset,
    Priority,
    RequestCeId,
    RequestCeSource,
    Score,
    Seconds,
    User,
)
from gangline_schemas.models import COLUMNS_SHOWN, AliasName, ModelName, Version

ALERTS_SHOWN = 50
"""A notification lists at most so many alerts, and counts the others."""
Targets = Annotated[tuple[Identifier, ...], Field(max_length=MAX_RECEIVERS)]
"""Names of receivers in the service's configuration."""


class GangPlace(Model):
    """The GPUs of a gang on one node."""

    node_id: Identifier
    gpus: tuple[GpuIndex, ...] = Field(max_length=GPUS_PER_NODE)


class JobFollowed(Event):
    """A job waits for GPUs since then; rules and its `notify` apply to it."""

    type: ClassVar[str] = "alert.job.followed"
    job_id: Identifier
    team: Identifier
    name: Identifier
    priority: Priority
    gpus: GangSize
    queued_at: Timestamp
    notify: tuple[Notification, ...] = Field(default=(), max_length=16)


class JobLeft(Event):
    """A job ended. It counts as failed or not."""

    type: ClassVar[str] = "alert.job.left"
    job_id: Identifier
    state: JobState
    ended_at: Timestamp


class JobPriorityFollowed(Event):
    """A job has this priority now."""

    type: ClassVar[str] = "alert.job.reprioritized"
    job_id: Identifier
    priority: Priority


class GangFollowed(Event):
    """A job has GPUs and no longer waits."""

    type: ClassVar[str] = "alert.gang.followed"
    job_id: Identifier
    attempt: Attempt
    places: tuple[GangPlace, ...] = Field(min_length=1, max_length=MAX_NODES)
    allocated_at: Timestamp


class GangLeft(Event):
    """A job gave its GPUs back at this time and waits again, unless it has ended."""

    type: ClassVar[str] = "alert.gang.left"
    job_id: Identifier
    attempt: Attempt
    released_at: Timestamp


class NodeFollowed(Event):
    """A node offers this many GPUs since then."""

    type: ClassVar[str] = "alert.node.followed"
    node_id: Identifier
    gpus: Few
    since: Timestamp


class NodeGone(Event):
    """A node takes no gangs since then. `back`: it may take some again as it is."""

    type: ClassVar[str] = "alert.node.left"
    node_id: Identifier
    back: bool = False
    since: Timestamp


class NodeFailureCounted(Event):
    """A node failed at this time."""

    type: ClassVar[str] = "alert.node.failed"
    node_id: Identifier
    failed_at: Timestamp


class PartitionOffset(Model):
    """The next offset of a partition."""

    partition: Few
    offset: Offset


class SavesCounted(Event):
    """Saves that were committed, and that failed, since the last count.

    `counted` says up to where in gangline.checkpoints. A takeover counts from there.
    """

    type: ClassVar[str] = "alert.saves.counted"
    saved: Count
    failed: Count
    counted: tuple[PartitionOffset, ...] = Field(max_length=1024)


class _OfAlias(Event):
    team: Identifier
    model: ModelName
    alias: AliasName


class ModelDataNoted(_OfAlias):
    """The newest data of one data set against those that a champion was trained on."""

    type: ClassVar[str] = "alert.model.data.noted"
    version: Version
    baseline: SnapshotName = Field(description="The snapshot that the version was trained on.")
    snapshot: SnapshotName
    found: Count = Field(description="Columns that moved; 0: none, so an alert is over.")
    columns: tuple[Name, ...] = Field(default=(), max_length=COLUMNS_SHOWN)


class ModelAgeNoted(_OfAlias):
    """The data of a champion are older than its gate allows."""

    type: ClassVar[str] = "alert.model.age.noted"
    version: Version
    snapshot: SnapshotName
    made_at: Timestamp
    limit_days: float = Field(gt=0, le=36_500)


class ModelDataForgotten(_OfAlias):
    """The alias points to another version, or has no gate any more."""

    type: ClassVar[str] = "alert.model.data.forgotten"


class WatchNoted(Event):
    """The rules are watched. `away_since`: they were not, from then until now."""

    type: ClassVar[str] = "alert.watch.noted"
    away_since: Timestamp | None = None


class AlertRaised(Event, AlertText):
    """A condition of a rule holds. It is raised once, until it is resolved."""

    type: ClassVar[str] = "alert.raised"
    silence: Few | None = Field(default=None, description="The silence that covers it.")
    targets: Targets = Field(default=(), description="The receivers that are notified.")


class AlertResolved(Event):
    """The condition of an alert no longer holds."""

    type: ClassVar[str] = "alert.resolved"
    number: Few
    rule: AlertRule
    level: Level = ""
    subject: AlertSubject
    team: Team = ""
    reason: Literal["recovered", "ended", "off"] = Field(
        description="off: the rule was switched off."
    )
    value: Score | None = Field(default=None, description="As last measured.")
    resolved_at: Timestamp


class AlertUnsilenced(Event):
    """The silence of an alert ended and the alert still holds: its receivers are notified."""

    type: ClassVar[str] = "alert.unsilenced"
    number: Few
    rule: AlertRule
    level: Level = ""
    subject: AlertSubject
    team: Team = ""
    targets: Targets = ()


class SilenceBegun(Event):
    """Alerts of this scope lead to no notifications until then."""

    type: ClassVar[str] = "silence.begun"
    silence: Few = Field(description="Its number; counts up.")
    scope: SilenceScope
    until: Timestamp
    comment: Label = ""
    user: User
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class SilenceEnded(Event):
    """A silence is over."""

    type: ClassVar[str] = "silence.ended"
    silence: Few
    reason: Literal["expired", "withdrawn"]
    user: User = ""
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class SilenceRefused(Event):
    """A request about silences was refused, and why."""

    type: ClassVar[str] = "silence.refused"
    reason: Message
    user: User = ""
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class NotificationDue(Event):
    """A receiver must be notified: of alerts of one rule and team, or of a job's new state.

    Webhooks get this event as a CloudEvent. `notification` is its id: a receiver that got it twice
    may drop the second.
    """

    type: ClassVar[str] = "notification.due"
    notification: Identifier
    target: Identifier
    team: Team = ""
    rule: AlertRule | None = Field(default=None, description="Of the alerts.")
    raised: tuple[AlertText, ...] = Field(default=(), max_length=ALERTS_SHOWN)
    resolved: tuple[AlertText, ...] = Field(default=(), max_length=ALERTS_SHOWN)
    more: Count = Field(default=0, description="Alerts that are not listed.")
    job: JobText | None = None
    due_at: Timestamp


class NotificationDeferred(Event):
    """The receiver did not take it; it is sent again then."""

    type: ClassVar[str] = "notification.deferred"
    notification: Identifier
    tries: Few
    reason: Message
    next_at: Timestamp


class NotificationDelivered(Event):
    """The receiver took it."""

    type: ClassVar[str] = "notification.delivered"
    notification: Identifier
    tries: Few
    took_s: Seconds
    answer: Label = Field(default="", description="Like `HTTP 200`.")


class NotificationFailed(Event):
    """It is not sent again."""

    type: ClassVar[str] = "notification.failed"
    notification: Identifier
    tries: Few
    reason: Message
