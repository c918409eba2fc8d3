"""Silences: begun and withdrawn by request, ended by time."""

from __future__ import annotations

from gangline_alerts.core.model import MOST_AT_ONCE
from gangline_alerts.core.policy.routes import Receivers
from gangline_alerts.core.state import AlertPlan, silence_of
from gangline_schemas.envelope import Envelope, request_key
from gangline_schemas.events.admin import SilenceRequested, UnsilenceRequested
from gangline_schemas.events.alerts import (
    AlertUnsilenced,
    SilenceBegun,
    SilenceEnded,
    SilenceRefused,
)

SILENCES_OF_TEAM = 100
"""Silences of one team that hold at once; as many of those without a team."""


def take(plan: AlertPlan, envelope: Envelope, receivers: Receivers) -> None:
    """Answer a request; one that was answered leads to nothing."""
    event = envelope.data
    if request_key(envelope.source, envelope.id) in plan.state.requests:
        return
    ref = {"request_id": envelope.id, "request_source": envelope.source}
    match event:
        case SilenceRequested():
            problem = _problem(plan, event)
            number = plan.state.numbers.get("silence", 0) + 1
            if problem is not None:
                plan.add("silence", SilenceRefused(reason=problem, user=event.user, **ref))
                return
            begun = SilenceBegun(
                silence=number,
                scope=event.scope,
                until=event.until,
                comment=event.comment,
                user=event.user,
                **ref,
            )
            plan.add("silence", begun)
        case UnsilenceRequested(silence=number, user=user):
            if number not in plan.state.silences:
                reason = f"there is no silence {number}; `gangline alerts silences` lists them"
                plan.add("silence", SilenceRefused(reason=reason, user=user, **ref))
                return
            ended = SilenceEnded(silence=number, reason="withdrawn", user=user, **ref)
            plan.add("silence", ended)
            _notify_again(plan, receivers)
        case _:
            pass


def expire(plan: AlertPlan, receivers: Receivers) -> None:
    """End the silences whose time is over; notify of alerts that no silence covers any more."""
    over = [name for name, one in plan.state.silences.items() if one.until <= plan.now]
    for number in over:
        plan.add("silence", SilenceEnded(silence=number, reason="expired"))
    _notify_again(plan, receivers)


def _problem(plan: AlertPlan, event: SilenceRequested) -> str | None:
    if event.until <= plan.now:
        return "until: lies in the past"
    team = event.scope.team
    if sum(one.scope.team == team for one in plan.state.silences.values()) >= SILENCES_OF_TEAM:
        whose = f"team {team} has" if team else "there are"
        rest = "" if team else " without a team"
        return f"{whose} {SILENCES_OF_TEAM} silences{rest}; withdraw some first"
    return None


def _notify_again(plan: AlertPlan, receivers: Receivers) -> None:
    """Alerts whose silence is over go to their receivers, unless another silence covers them."""
    for alert in list(plan.state.alerts.values()):
        text = alert.text
        if len(plan.decisions) >= MOST_AT_ONCE:
            return
        if alert.silence is None or alert.silence in plan.state.silences:
            continue
        if silence_of(plan.state, text) is None:
            targets = receivers.of_alert(text.rule, text.severity, text.team)
            unsilenced = AlertUnsilenced(
                number=text.number,
                rule=text.rule,
                level=text.level,
                subject=text.subject,
                team=text.team,
                targets=targets,
            )
            plan.add(text.subject, unsilenced)
