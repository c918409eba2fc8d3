"""Overview: the map of all GPUs, and what runs, waits, fires and failed."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from starlette.responses import Response

from gangline_console.page import Page, View
from gangline_schemas.api.alerts import AlertList
from gangline_schemas.api.cluster import Queue
from gangline_schemas.api.incidents import IncidentPage
from gangline_schemas.api.jobs import JobPage

COLOURS = ("job", "team", "utilization", "health")
_ROWS = 6
_NEWEST = {"limit": _ROWS, "shares": False}
_DAY = timedelta(hours=24)


async def _show(view: View) -> Response:
    wanted = view.query("by", COLOURS[0])
    since = (view.now - _DAY).isoformat(timespec="seconds")
    running, queue, alerts, incidents = await asyncio.gather(
        view.api.get("/v1/training-jobs", JobPage, {"state": ["running"], "limit": _ROWS}),
        view.api.part("/v1/queue", Queue, {"limit": _ROWS}),
        view.api.part("/v1/alerts", AlertList, {"limit": 100}),
        view.api.part("/v1/incidents", IncidentPage, {"since": since, **_NEWEST}),
    )
    return view.render(
        "overview/page.html",
        by=wanted if wanted in COLOURS else COLOURS[0],
        colours=COLOURS,
        running=running,
        queue=queue,
        alerts=alerts,
        incidents=incidents,
        rows=_ROWS,
    )


PAGE = Page("overview", "Overview", nav="/overview", icon="overview", get={"/overview": _show})
