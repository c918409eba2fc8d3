"""Studies: all searches with their progress, their best value and what they cost."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from gangline_console.page import Page, View
from gangline_schemas.api.studies import StudyPage

STATES: dict[str, tuple[str, str]] = {
    "running": ("run", "▶"),
    "ending": ("warn", "◌"),
    "ended": ("off", "■"),
}
"""Kind and icon of each state of a study."""
REASONS = {
    "trials": "all its trials have ended",
    "exhausted": "each point of its grid was tried",
    "gpu_hours": "its GPU-hours are spent",
    "failed": "too many trials failed",
    "deadline": "its deadline has passed",
    "stopped": "it was stopped",
    "sampler": "its sampler could propose no trial",
}
"""Why a study ends or has ended."""


async def _show(view: View) -> Response:
    wanted = {name: view.query(name) for name in ("state", "team", "name")}
    asked = {name: text or None for name, text in wanted.items()}
    cursor = view.query("cursor")
    page, teams = await asyncio.gather(
        view.api.get("/v1/studies", StudyPage, {**asked, "cursor": cursor or None}),
        view.teams(),
    )
    return view.render(
        "studies/page.html",
        reasons=REASONS,
        studies=page.studies,
        next_cursor=page.cursor,
        cursor=cursor,
        wanted=wanted,
        filtered=any(wanted.values()),
        teams=teams,
        states=STATES,
    )


PAGE = Page("studies", "Studies", nav="/studies", icon="studies", key="d", get={"/studies": _show})
