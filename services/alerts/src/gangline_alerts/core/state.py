"""The fold of gangline.alerts: jobs, GPUs and counts; alerts, silences and notifications."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal, TypeVar

from gangline_alerts.core.model import (
    Alert,
    Counts,
    Delivery,
    Group,
    Job,
    ModelData,
    Sent,
    Silence,
    Span,
    Usage,
    Watch,
    alert_key,
)
from gangline_bus.decision import Fold
from gangline_bus.plan import Plan
from gangline_schemas.alerts import AlertRule, AlertText
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import request_key
from gangline_schemas.events.alerts import (
    ALERTS_SHOWN,
    AlertRaised,
    AlertResolved,
    AlertUnsilenced,
    GangFollowed,
    GangLeft,
    JobFollowed,
    JobLeft,
    JobPriorityFollowed,
    NodeFailureCounted,
    NodeFollowed,
    NodeGone,
    NotificationDeferred,
    NotificationDelivered,
    NotificationDue,
    NotificationFailed,
    SavesCounted,
    SilenceBegun,
    SilenceEnded,
    SilenceRefused,
    WatchNoted,
)
from gangline_schemas.job import JobState
from gangline_schemas.memory import keep_newest

MINUTES_KEPT = 1500
"""A day and an hour of changes in the use of GPUs."""
HOURS_KEPT = 25
RESOLVED_KEPT = 1000
SENT_KEPT = 1000
REQUESTS_KEPT = 1000
AWAY_KEPT = 1000
ValueT = TypeVar("ValueT")


@dataclass(slots=True)
class AlertState:
    """Values are frozen, so that a plan branches the dicts alone.

    - `jobs`: those that have not ended. `nodes`: the GPUs that each node offers.
      `drained`: the GPUs it offers again once it is uncordoned.
    - `totals`: GPUs "held" by gangs and "offered" by nodes; `usage`: both by minute.
    - `models`: the data of protected aliases, by team/model/alias.
    - `hours`: counts by hour. `counted`: saves are counted up to these offsets by partition.
    - `away`: when this service was away. `watched_at`: when it last noted that it watches.
    - `alerts`: those that hold, by rule and subject. `resolved`: the newest others, by number.
    - `silences`: those that hold, by number. `requests`: the answered ones,
      each with the reason why it was refused, or "".
    - `groups`: news that wait, by receiver, rule and team; `grouped`: when each was last sent.
    - `open`: notifications that are not delivered. `sent`: the newest others.
    - `numbers`: the last number of an "alert", "silence" and "notification".
    """

    jobs: dict[str, Job] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    drained: dict[str, int] = field(default_factory=dict)
    models: dict[str, ModelData] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    usage: dict[int, Usage] = field(default_factory=dict)
    hours: dict[int, Counts] = field(default_factory=dict)
    counted: dict[int, int] = field(default_factory=dict)
    away: tuple[Span, ...] = ()
    watched_at: datetime | None = None
    alerts: dict[str, Alert] = field(default_factory=dict)
    resolved: dict[int, Alert] = field(default_factory=dict)
    silences: dict[int, Silence] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    grouped: dict[str, datetime] = field(default_factory=dict)
    open: dict[str, Delivery] = field(default_factory=dict)
    sent: dict[str, Sent] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)


AlertPlan = Plan[AlertState, Watch]
fold: Fold[AlertState] = Fold(Topic.ALERTS)
"""How the events of gangline.alerts change the state, in place."""


# Facts


@fold.on(JobFollowed)
def _(state: AlertState, event: JobFollowed, _at: datetime) -> None:
    state.jobs[event.job_id] = Job(
        event.team,
        event.name,
        event.priority,
        event.gpus,
        event.notify,
        waiting_since=event.queued_at,
    )


@fold.on(JobLeft)
def _(state: AlertState, event: JobLeft, _at: datetime) -> None:
    job = state.jobs.pop(event.job_id)
    _use(state, "held", -job.held, event.ended_at)
    if event.state is not JobState.CANCELLED:
        _count(state, event.ended_at, ended=1, failed=int(event.state is JobState.FAILED))


@fold.on(JobPriorityFollowed)
def _(state: AlertState, event: JobPriorityFollowed, _at: datetime) -> None:
    state.jobs[event.job_id] = replace(state.jobs[event.job_id], priority=event.priority)


@fold.on(GangFollowed)
def _(state: AlertState, event: GangFollowed, _at: datetime) -> None:
    old = state.jobs[event.job_id]
    job = replace(old, waiting_since=None, attempt=event.attempt, places=event.places)
    state.jobs[event.job_id] = job
    _use(state, "held", job.held - old.held, event.allocated_at)


@fold.on(GangLeft)
def _(state: AlertState, event: GangLeft, _at: datetime) -> None:
    job = state.jobs[event.job_id]
    state.jobs[event.job_id] = replace(job, waiting_since=event.released_at, places=())
    _use(state, "held", -job.held, event.released_at)


@fold.on(NodeFollowed)
def _(state: AlertState, event: NodeFollowed, _at: datetime) -> None:
    change = event.gpus - state.nodes.get(event.node_id, 0)
    state.drained.pop(event.node_id, None)
    state.nodes[event.node_id] = event.gpus
    _use(state, "offered", change, event.since)


@fold.on(NodeGone)
def _(state: AlertState, event: NodeGone, _at: datetime) -> None:
    gpus = state.nodes.pop(event.node_id, 0)
    _use(state, "offered", -gpus, event.since)
    state.drained.pop(event.node_id, None)
    if event.back:
        state.drained[event.node_id] = gpus


@fold.on(NodeFailureCounted)
def _(state: AlertState, event: NodeFailureCounted, _at: datetime) -> None:
    _count(state, event.failed_at, node_failures=1)


@fold.on(SavesCounted)
def _(state: AlertState, event: SavesCounted, at: datetime) -> None:
    state.counted |= {one.partition: one.offset for one in event.counted}
    _count(state, at, saved=event.saved, unsaved=event.failed)


@fold.on(WatchNoted)
def _(state: AlertState, event: WatchNoted, at: datetime) -> None:
    state.watched_at = at
    if event.away_since is not None:
        state.away = (*state.away, Span(event.away_since, at))[-AWAY_KEPT:]


def _use(state: AlertState, what: str, change: int, at: datetime) -> None:
    minute = int(at.timestamp()) // 60
    earlier = state.usage.get(minute) or _usage(state)
    state.totals[what] = state.totals.get(what, 0) + change
    now = _usage(state)
    state.usage[minute] = replace(now, busiest=max(earlier.busiest, now.busiest))
    _keep_latest(state.usage, MINUTES_KEPT)


def _usage(state: AlertState) -> Usage:
    now = Usage(state.totals.get("held", 0), state.totals.get("offered", 0), 0.0)
    return replace(now, busiest=now.share)


def _count(state: AlertState, at: datetime, **more: int) -> None:
    hour = int(at.timestamp()) // 3600
    old = state.hours.get(hour, Counts())
    state.hours[hour] = replace(old, **{name: getattr(old, name) + n for name, n in more.items()})
    _keep_latest(state.hours, HOURS_KEPT)


def _keep_latest(held: dict[int, ValueT], most: int) -> None:
    """Inputs of two topics come in no common order, so the oldest time need not come first."""
    while len(held) > most:
        del held[min(held)]


# Alerts and silences


@fold.on(AlertRaised)
def _(state: AlertState, event: AlertRaised, at: datetime) -> None:
    text = AlertText(**{name: getattr(event, name) for name in AlertText.model_fields})
    alert = Alert(text, event.silence, event.targets)
    state.alerts[alert_key(event.rule, event.level, event.team, event.subject)] = alert
    state.numbers["alert"] = event.number
    _group(state, event.targets, text, at)


@fold.on(AlertResolved)
def _(state: AlertState, event: AlertResolved, at: datetime) -> None:
    alert = state.alerts.pop(alert_key(event.rule, event.level, event.team, event.subject))
    state.resolved[event.number] = replace(alert, resolved_at=event.resolved_at)
    keep_newest(state.resolved, RESOLVED_KEPT)
    for target in alert.targets:
        _resolve(state, target, alert.text, at)


@fold.on(AlertUnsilenced)
def _(state: AlertState, event: AlertUnsilenced, at: datetime) -> None:
    key = alert_key(event.rule, event.level, event.team, event.subject)
    alert = state.alerts[key]
    state.alerts[key] = replace(alert, silence=None, targets=event.targets)
    _group(state, event.targets, alert.text, at)


@fold.on(SilenceBegun)
def _(state: AlertState, event: SilenceBegun, at: datetime) -> None:
    state.silences[event.silence] = Silence(
        event.scope,
        event.until,
        event.comment,
        event.user,
        at,
        event.request_id,
        event.request_source,
    )
    state.numbers["silence"] = event.silence
    _answered(state, event.request_source, event.request_id, "")


@fold.on(SilenceEnded)
def _(state: AlertState, event: SilenceEnded, _at: datetime) -> None:
    del state.silences[event.silence]
    _answered(state, event.request_source, event.request_id, "")


@fold.on(SilenceRefused)
def _(state: AlertState, event: SilenceRefused, _at: datetime) -> None:
    _answered(state, event.request_source, event.request_id, event.reason)


def _answered(state: AlertState, source: str, request_id: str, reason: str) -> None:
    if request_id:
        state.requests[request_key(source, request_id)] = reason
        keep_newest(state.requests, REQUESTS_KEPT)


# Notifications


def group_key(target: str, rule: AlertRule, team: str) -> str:
    """The key of a group of alerts."""
    return f"{target}/{rule.value}/{team}"


def _group(state: AlertState, targets: Iterable[str], text: AlertText, at: datetime) -> None:
    for target in targets:
        key = group_key(target, text.rule, text.team)
        group = state.groups.get(key, Group(at))
        if len(group.raised) < ALERTS_SHOWN:
            state.groups[key] = replace(group, raised=(*group.raised, text))
        else:
            state.groups[key] = replace(group, more=group.more + 1)


def _resolve(state: AlertState, target: str, text: AlertText, at: datetime) -> None:
    """A receiver that was not notified of the alert is not notified of its end either."""
    key = group_key(target, text.rule, text.team)
    group = state.groups.get(key, Group(at))
    if text in group.raised:
        left = tuple(one for one in group.raised if one != text)
        state.groups[key] = replace(group, raised=left)
        if not (left or group.resolved or group.more):
            del state.groups[key]
    elif len(group.resolved) < ALERTS_SHOWN:
        state.groups[key] = replace(group, resolved=(*group.resolved, text))
    else:
        state.groups[key] = replace(group, more=group.more + 1)


@fold.on(NotificationDue)
def _(state: AlertState, event: NotificationDue, _at: datetime) -> None:
    state.open[event.notification] = Delivery(event, event.due_at)
    state.numbers["notification"] = state.numbers.get("notification", 0) + 1
    if event.rule is not None:
        key = group_key(event.target, event.rule, event.team)
        state.groups.pop(key, None)
        state.grouped.pop(key, None)
        state.grouped[key] = event.due_at
        keep_newest(state.grouped, SENT_KEPT)


@fold.on(NotificationDeferred)
def _(state: AlertState, event: NotificationDeferred, _at: datetime) -> None:
    state.open[event.notification] = replace(
        state.open[event.notification],
        next_at=event.next_at,
        tries=event.tries,
        reason=event.reason,
    )


@fold.on(NotificationDelivered)
def _(state: AlertState, event: NotificationDelivered, at: datetime) -> None:
    _close(state, event.notification, event.tries, "delivered", at, event.answer)


@fold.on(NotificationFailed)
def _(state: AlertState, event: NotificationFailed, at: datetime) -> None:
    _close(state, event.notification, event.tries, "failed", at, event.reason)


def _close(
    state: AlertState,
    notification: str,
    tries: int,
    outcome: Literal["delivered", "failed"],
    at: datetime,
    text: str,
) -> None:
    due = state.open.pop(notification).due
    state.sent[notification] = Sent(
        notification, due.target, due.team, about(due), alerts_in(due), due.due_at,
        tries, outcome, at, text,
    )  # fmt: skip
    keep_newest(state.sent, SENT_KEPT)


# Questions that several modules ask


def about(due: NotificationDue) -> str:
    """The id of the job, or the name of the rule."""
    return due.job.job_id if due.job is not None else str(due.rule or "")


def alerts_in(due: NotificationDue) -> int:
    """How many alerts a notification has, with those that it does not show."""
    return len(due.raised) + len(due.resolved) + due.more


def total(hours: Mapping[int, Counts], now: datetime) -> Counts:
    """The counts of the last 24 hours, with the hour that runs."""
    first = int((now - timedelta(hours=23)).timestamp()) // 3600
    found = Counts()
    for hour, counts in hours.items():
        if hour >= first:
            found = Counts(
                found.ended + counts.ended,
                found.failed + counts.failed,
                found.saved + counts.saved,
                found.unsaved + counts.unsaved,
                found.node_failures + counts.node_failures,
            )
    return found


def silence_of(state: AlertState, text: AlertText) -> int | None:
    """The first silence that covers an alert."""
    for number, silence in state.silences.items():
        if silence.scope.covers(text.rule, text.subject, text.team):
            return number
    return None
