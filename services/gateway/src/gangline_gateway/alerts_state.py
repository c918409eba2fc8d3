"""Follows the log of the alerts service: alerts, silences and notifications for answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from gangline_alerts.core.decide import AlertDecider
from gangline_alerts.core.model import Alert as AlertFacts
from gangline_alerts.core.model import Delivery, Sent
from gangline_alerts.core.model import Silence as SilenceFacts
from gangline_alerts.core.snapshot import codec
from gangline_alerts.core.state import AlertState, about, alerts_in
from gangline_bus.snapshot import SnapshotStore
from gangline_gateway.followed import Copies, Followed, only_state
from gangline_schemas.api.alerts import Alert, SentNotification, Silence
from gangline_schemas.catalog import Topic


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
            yield alert(one)


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
    both: list[Delivery | Sent] = sorted([*waiting, *over], key=_number, reverse=True)
    for one in both:
        if sees(one.due.team if isinstance(one, Delivery) else one.team):
            yield _waiting(one) if isinstance(one, Delivery) else _over(one)


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


def alert(facts: AlertFacts) -> Alert:
    """An alert as answers show it."""
    text = facts.text
    return Alert(
        number=text.number,
        rule=text.rule,
        level=text.level,
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


def _number(one: Delivery | Sent) -> int:
    name = one.due.notification if isinstance(one, Delivery) else one.notification
    return int(name.removeprefix("n"))


def _waiting(one: Delivery) -> SentNotification:
    due = one.due
    return SentNotification(
        notification=due.notification,
        target=due.target,
        team=due.team,
        about=about(due),
        alerts=alerts_in(due),
        state="deferred" if one.tries else "due",
        tries=one.tries,
        text=one.reason,
        due_at=due.due_at,
        next_at=one.next_at,
        ended_at=None,
    )


def _over(one: Sent) -> SentNotification:
    return SentNotification(
        notification=one.notification,
        target=one.target,
        team=one.team,
        about=one.about,
        alerts=one.alerts,
        state=one.outcome,
        tries=one.tries,
        text=one.text,
        due_at=one.due_at,
        next_at=None,
        ended_at=one.at,
    )
