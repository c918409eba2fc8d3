"""Follows the log of the alerts service: alerts, silences and notifications for answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from gangline_alerts.core.decide import AlertDecider
from gangline_alerts.core.model import Alert as AlertFacts
from gangline_alerts.core.model import Delivery, Sent
from gangline_alerts.core.model import Silence as SilenceFacts
from gangline_alerts.core.snapshot import codec
from gangline_alerts.core.state import AlertState
from gangline_bus.snapshot import SnapshotStore
from gangline_gateway.followed import Copies, Followed, only_state
from gangline_schemas.api.alerts import Alert, SentNotification, Silence
from gangline_schemas.catalog import Topic
from gangline_schemas.events.alerts import NotificationDue


def followed(store: SnapshotStore | None = None) -> Followed[AlertState]:
    """The follower of gangline.alerts. A copy costs the alerts and notifications it remembers."""
    return Followed(AlertDecider(), codec(), _copy, store)


def alerts_of(copies: Copies[AlertState]) -> AlertState:
    """The state of its one partition. Raises NoStateError."""
    return only_state(copies, Topic.ALERTS)


def _copy(state: AlertState) -> AlertState:
    """A copy of what answers read; the other maps are shared and must not be read."""
    return replace(
        state,
        alerts=dict(state.alerts),
        resolved=dict(state.resolved),
        silences=dict(state.silences),
        requests=dict(state.requests),
        open=dict(state.open),
        sent=dict(state.sent),
    )


def alerts(state: AlertState, *, ended: bool, sees: Callable[[str], bool]) -> Iterator[Alert]:
    """Alerts that hold, with `ended` also resolved ones; the newest first."""
    held = [*state.alerts.values(), *(state.resolved.values() if ended else ())]
    for one in sorted(held, key=lambda alert: alert.text.number, reverse=True):
        if not one.text.team or sees(one.text.team):
            yield _alert(one)


def silences(state: AlertState, sees: Callable[[str], bool]) -> list[Silence]:
    """Silences that hold, by number; every caller sees those of all teams."""
    return [
        silence(number, one)
        for number, one in sorted(state.silences.items())
        if one.scope.team is None or sees(one.scope.team)
    ]


def notifications(state: AlertState, sees: Callable[[str], bool]) -> Iterator[SentNotification]:
    """The newest first. `sees` gets the team; "" for those about the cluster."""
    waiting, over = list(state.open.values()), list(state.sent.values())
    both: list[Delivery | Sent] = sorted(
        [*waiting, *over], key=lambda one: _number(one.due), reverse=True
    )
    for one in both:
        if sees(one.due.team):
            yield _notification(one)


def silence(number: int, facts: SilenceFacts) -> Silence:
    """A silence as answers show it."""
    return Silence(
        number=number,
        rule=facts.scope.rule,
        team=facts.scope.team,
        subject=facts.scope.subject,
        until=facts.until,
        comment=facts.comment,
        user=facts.user,
        begun_at=facts.begun_at,
    )


def _alert(facts: AlertFacts) -> Alert:
    text = facts.text
    return Alert(
        number=text.number,
        rule=text.rule,
        subject=text.subject,
        team=text.team,
        severity=text.severity,
        value=text.value,
        threshold=text.threshold,
        message=text.message,
        cause=text.cause,
        raised_at=text.raised_at,
        resolved_at=facts.resolved_at,
        silence=facts.silence,
        targets=list(facts.targets),
    )


def _number(due: NotificationDue) -> int:
    return int(due.notification.removeprefix("n"))


def _notification(one: Delivery | Sent) -> SentNotification:
    due, is_open = one.due, isinstance(one, Delivery)
    if isinstance(one, Delivery):
        state, text = "deferred" if one.tries else "due", one.reason
    else:
        state, text = one.outcome, one.text
    return SentNotification.model_validate(
        {
            "notification": due.notification,
            "target": due.target,
            "team": due.team,
            "about": due.job.job_id if due.job is not None else str(due.rule or ""),
            "alerts": len(due.raised) + len(due.resolved) + due.more,
            "state": state,
            "tries": one.tries,
            "text": text,
            "due_at": due.due_at,
            "next_at": one.next_at if isinstance(one, Delivery) else None,
            "ended_at": None if is_open else one.at,  # type: ignore[union-attr]
        }
    )
