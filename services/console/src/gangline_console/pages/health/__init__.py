"""Platform health: each process of the services, and the records that they refused."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from gangline_console.page import PREFIX, Page, View
from gangline_schemas.api.health import DeadLetterPage, PlatformHealth

STATES: dict[str, tuple[str, str]] = {
    "ready": ("good", "✓"),
    "not_ready": ("warn", "◌"),
    "stalled": ("bad", "‼"),
    "silent": ("bad", "✕"),
    "absent": ("bad", "⊘"),
}
MEANINGS = {
    "not_ready": "A check fails: see below.",
    "stalled": "Its main loop does not turn; it should be restarted.",
    "silent": "It has not reported for 35 seconds or more: it has ended, or Kafka is away.",
    "absent": "No process of this service was seen for a day: start it.",
}
_TABS = (
    ("health", "Services", f"{PREFIX}/health"),
    ("letters", "Dead letters", f"{PREFIX}/health/dead-letters"),
)


async def _health(view: View) -> Response:
    found = await view.api.get("/v1/health", PlatformHealth)
    names = {row.service for row in found.services}
    ready = {row.service for row in found.services if row.state == "ready"}
    return view.render(
        "health/page.html",
        tabs=_tabs(view),
        health=found,
        states=STATES,
        meanings=MEANINGS,
        ready=len(ready),
        services=len(names),
        unread=sum(row.unread_records or 0 for row in found.services),
        letters=None
        if found.dead_letters is None
        else sum(one.records for one in found.dead_letters),
        whole=_sees_all(view),
    )


async def _letters(view: View) -> Response:
    topic, cursor = view.query("topic"), view.query("cursor")
    page, health = await asyncio.gather(
        view.api.get(
            "/v1/dead-letters", DeadLetterPage, {"topic": topic or None, "cursor": cursor or None}
        ),
        view.api.get("/v1/health", PlatformHealth),
    )
    counts = health.dead_letters or []
    return view.render(
        "health/letters.html",
        tabs=_tabs(view),
        letters=page.dead_letters,
        next_cursor=page.cursor,
        cursor=cursor,
        topic=topic,
        counts={one.topic.removeprefix("gangline."): one.records for one in counts},
    )


def _sees_all(view: View) -> bool:
    return view.who.role == "admin"


def _tabs(view: View) -> tuple[tuple[str, str, str], ...]:
    return _TABS if _sees_all(view) else _TABS[:1]


PAGE = Page(
    "health",
    "Health",
    nav="/health",
    icon="health",
    get={"/health": _health, "/health/dead-letters": _letters},
)
