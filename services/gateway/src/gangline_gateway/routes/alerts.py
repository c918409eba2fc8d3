"""/v1/alerts, /v1/silences and /v1/notifications: alerts, silences, and sent notifications."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice
from typing import Annotated

from fastapi import Path, Query

from gangline_alerts.core.state import AlertState
from gangline_gateway import alerts_state
from gangline_gateway.alerts_state import alerts_of
from gangline_gateway.answered import answered
from gangline_gateway.app_context import App, AppContext, Caller, answers, may_change, router
from gangline_gateway.problems import conflict, forbidden, not_found
from gangline_gateway.publish import SOURCE
from gangline_schemas.alerts import SilenceScope
from gangline_schemas.api.alerts import (
    AlertList,
    NotificationList,
    RuleList,
    Silence,
    SilenceBody,
    SilenceList,
)
from gangline_schemas.base import Event
from gangline_schemas.events.admin import SilenceRequested, UnsilenceRequested
from gangline_service.tokens import Principal, Role

alerts = router("Alerts")
_KEY = "silences"


@alerts.get(
    "/v1/alerts",
    operation_id="listAlerts",
    summary="List alerts",
    response_model=AlertList,
    responses=answers(),
)
def list_alerts(
    app: App,
    caller: Caller,
    *,
    all: Annotated[bool, Query(description="Resolved ones too.")] = False,  # noqa: A002
    limit: Annotated[int, Query(ge=1, le=2000)] = 200,
) -> AlertList:
    """The cluster's alerts, and those of jobs that the caller can see; the newest first."""
    found = alerts_state.alerts(alerts_of(app.tail.alerts()), ended=all, sees=caller.reads)
    return AlertList(alerts=[*islice(found, limit)])


@alerts.get(
    "/v1/alert-rules",
    operation_id="listAlertRules",
    summary="List the rules of alerts",
    response_model=RuleList,
    responses=answers(),
)
def list_rules(app: App, caller: Caller) -> RuleList:
    """The rules for all teams, and those of the caller's teams, with their thresholds."""
    found = app.alert_rules.rows()
    return RuleList(rules=[row for row in found if not row.team or caller.reads(row.team)])


@alerts.get(
    "/v1/notifications",
    operation_id="listNotifications",
    summary="List notifications and their deliveries",
    response_model=NotificationList,
    responses=answers(),
)
def list_notifications(
    app: App, caller: Caller, limit: Annotated[int, Query(ge=1, le=2000)] = 100
) -> NotificationList:
    """The newest first. Those about the cluster are for tokens that see all teams."""
    state = alerts_of(app.tail.alerts())
    found = alerts_state.notifications(state, lambda team: _sees(caller, team))
    return NotificationList(notifications=[*islice(found, limit)])


@alerts.get(
    "/v1/silences",
    operation_id="listSilences",
    summary="List silences",
    response_model=SilenceList,
    responses=answers(),
)
def list_silences(app: App, caller: Caller) -> SilenceList:
    """Those that hold, by number."""
    found = alerts_state.silences(alerts_of(app.tail.alerts()), caller.reads)
    return SilenceList(silences=found)


@alerts.post(
    "/v1/silences",
    operation_id="beginSilence",
    summary="Silence alerts",
    status_code=201,
    response_model=Silence,
    responses=answers(404, 409),
)
async def begin_silence(body: SilenceBody, app: App, caller: Caller) -> Silence:
    """Alerts of this scope are raised and listed, but lead to no notifications.

    Without a team it needs an admin. 503 if the service did not answer in time; the request is on
    the bus then.
    """
    scope = SilenceScope(rule=body.rule, team=body.team, subject=body.subject)
    if body.alert is not None:
        scope = _scope_of(alerts_of(app.tail.alerts()), body.alert, caller)
    _may_silence(caller, scope)
    until = app.clock() + timedelta(hours=body.hours)
    event = SilenceRequested(scope=scope, until=until, comment=body.comment, user=caller.name)
    request_id, state = await _answered(app, event)
    for number, one in state.silences.items():
        if (one.request_id, one.request_source) == (request_id, SOURCE):
            return alerts_state.silence(number, one)
    raise conflict("refused", "the silence has ended already")


@alerts.post(
    "/v1/silences/{number}/end",
    operation_id="endSilence",
    summary="End a silence",
    response_model=Silence,
    responses=answers(404, 409),
)
async def end_silence(
    number: Annotated[int, Path(ge=1, lt=2**31)], app: App, caller: Caller
) -> Silence:
    """Its alerts that still hold are notified then. Without a team it needs an admin."""
    facts = alerts_of(app.tail.alerts()).silences.get(number)
    if facts is None or not (facts.scope.team is None or caller.reads(facts.scope.team)):
        raise not_found("silence")
    _may_silence(caller, facts.scope)
    await _answered(app, UnsilenceRequested(silence=number, user=caller.name))
    return alerts_state.silence(number, facts)


def _sees(caller: Principal, team: str) -> bool:
    return caller.reads(team) if team else caller.all_teams


def _scope_of(state: AlertState, number: int, caller: Principal) -> SilenceScope:
    for one in (*state.alerts.values(), *state.resolved.values()):
        text = one.text
        if text.number == number and (not text.team or caller.reads(text.team)):
            return SilenceScope(rule=text.rule, team=text.team or None, subject=text.subject)
    raise not_found("alert")


def _may_silence(caller: Principal, scope: SilenceScope) -> None:
    if scope.team is not None:
        may_change(caller, scope.team)
    elif caller.role is not Role.ADMIN:
        raise forbidden("a silence for all teams needs a token with the role admin", "team")


async def _answered(app: AppContext, event: Event) -> tuple[str, AlertState]:
    """The request's id, and the state with its answer. Raises a 409 or 503 problem."""
    return await answered(app, _KEY, event, lambda: alerts_of(app.tail.alerts()))
