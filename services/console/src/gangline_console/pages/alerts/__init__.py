"""Alerts: what fires and why, silences, the rules with their thresholds, and deliveries."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from gangline_console.formats import duration, number
from gangline_console.forms import FormError
from gangline_console.page import PREFIX, Page, View
from gangline_schemas.alerts import CLUSTER, AlertRule
from gangline_schemas.api.alerts import (
    Alert,
    AlertList,
    NotificationList,
    RuleList,
    Silence,
    SilenceList,
    Threshold,
)

DELIVERIES: dict[str, tuple[str, str]] = {
    "due": ("wait", "◌"),
    "deferred": ("warn", "↻"),
    "delivered": ("good", "✓"),
    "failed": ("bad", "✕"),
}
HOURS = (1, 4, 8, 24, 72, 168)
_TABS = (
    ("alerts", "Alerts", f"{PREFIX}/alerts"),
    ("rules", "Rules", f"{PREFIX}/alerts/rules"),
    ("deliveries", "Deliveries", f"{PREFIX}/alerts/deliveries"),
)


async def _alerts(view: View) -> Response:
    every = view.query("all") == "true"
    found, silences = await asyncio.gather(
        view.api.get("/v1/alerts", AlertList, {"all": every}),
        view.api.get("/v1/silences", SilenceList),
    )
    return view.render(
        "alerts/page.html",
        **_words("alerts"),
        alerts=found.alerts,
        held=sum(one.resolved_at is None for one in found.alerts),
        silences=silences.silences,
        every=every,
        done=_done(view.query("done")),
        scope=scope,
        measured=measured,
        place=place,
    )


async def _rules(view: View) -> Response:
    found = await view.api.get("/v1/alert-rules", RuleList)
    return view.render(
        "alerts/rules.html", **_words("rules"), rules=found.rules, threshold=threshold
    )


async def _deliveries(view: View) -> Response:
    found = await view.api.get("/v1/notifications", NotificationList, {"limit": 200})
    return view.render(
        "alerts/deliveries.html",
        **_words("deliveries"),
        notifications=found.notifications,
        states=DELIVERIES,
    )


async def _ask(view: View) -> Response:
    """The form of a silence: of one alert, or of a rule, team and subject."""
    number_of = view.query("alert")
    chosen: Alert | None = None
    if number_of:
        found = await view.api.get("/v1/alerts", AlertList, {"all": True, "limit": 2000})
        chosen = next((one for one in found.alerts if str(one.number) == number_of), None)
        if chosen is None:
            raise FormError(404, f"there is no alert {number_of} that you may see")
    return view.render(
        "alerts/silence.html",
        **_words("alerts"),
        chosen=chosen,
        asked=view.query("rule"),
        teams=await view.teams(),
        rules=[rule.value for rule in AlertRule],
        hours=HOURS,
    )


async def _begin(view: View) -> Response:
    given = {name: view.form.get(name).strip() for name in ("alert", "rule", "team", "subject")}
    body: dict[str, Any] = {name: value for name, value in given.items() if value}
    body |= {"hours": view.form.get("hours"), "comment": view.form.get("comment")}
    made = await view.api.post("/v1/silences", Silence, body)
    return view.go(f"/alerts?done=silence+{made.number}+holds")


async def _end(view: View) -> Response:
    wanted = view.form.get("silence")
    if not (wanted.isascii() and wanted.isdigit()):
        raise FormError(422, "name the silence by its number")
    ended = await view.api.post(f"/v1/silences/{wanted}/end", Silence)
    return view.go(f"/alerts?done=silence+{ended.number}+has+ended")


def _done(text: str) -> str:
    """The note after a form: of its own words only, as an address may be anyone's."""
    return text if re.fullmatch(r"silence [0-9]{1,9} (holds|has ended)", text) else ""


def scope(silence: Silence) -> str:
    """Which alerts a silence covers, in words."""
    parts = [
        f"rule {silence.rule}" if silence.rule else "",
        f"team {silence.team}" if silence.team else "",
        f"about {silence.subject}" if silence.subject else "",
    ]
    return ", ".join(filter(None, parts)) or "all alerts"


def place(alert: Alert) -> str:
    """The address of the page of a job or model."""
    if alert.rule in {AlertRule.DATA_DRIFT, AlertRule.DATA_AGE}:
        return f"/models/{quote(alert.subject.rpartition('@')[0])}?team={alert.team}"
    return f"/jobs/{alert.subject}"


def measured(alert: Alert) -> str:
    """The value against its threshold, in the rule's unit."""
    if alert.rule == AlertRule.QUEUE_WAIT:
        return f"{duration(alert.value)}, above {duration(alert.threshold)}"
    if alert.rule == AlertRule.DATA_DRIFT:
        return f"{number(alert.value)} columns, above {number(alert.threshold)}"
    if alert.rule == AlertRule.DATA_AGE:
        return f"{alert.value:.1f} days, above {alert.threshold:g}"
    if alert.rule == AlertRule.NODE_FAILURES:
        return f"{number(alert.value)} nodes, above {number(alert.threshold)}"
    side = "below" if alert.rule in _BELOW else "above"
    return f"{100 * alert.value:.1f} %, {side} {100 * alert.threshold:.3g} %"


def threshold(one: Threshold) -> str:
    """A field of a rule with its unit."""
    if one.name.endswith("_s"):
        return duration(one.value)
    if 0 < one.value < 1:
        return f"{100 * one.value:.3g} %"
    return number(one.value)


_BELOW = {
    AlertRule.CLUSTER_UTILIZATION,
    AlertRule.LOW_MFU,
    AlertRule.DATA_LOADING,
    AlertRule.GPU_ACTIVITY,
}


def _words(tab: str) -> dict[str, Any]:
    return {"tabs": _TABS, "tab": tab, "cluster": CLUSTER}


PAGE = Page(
    "alerts",
    "Alerts",
    nav="/alerts",
    icon="alerts",
    get={
        "/alerts": _alerts,
        "/alerts/rules": _rules,
        "/alerts/deliveries": _deliveries,
        "/alerts/silence": _ask,
    },
    post={"/alerts/silence": _begin, "/alerts/silences/end": _end},
)
