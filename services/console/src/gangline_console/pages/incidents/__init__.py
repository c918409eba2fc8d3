"""Incidents: failures with their cost, and one failure with its recovery and stacks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import quote

from starlette.responses import Response

from gangline_console.page import Page, View
from gangline_schemas.api.incidents import Incident, IncidentDetail, IncidentPage, Stacks
from gangline_schemas.events.faults import FailureClass

DAYS = {"1": "Last 24 hours", "7": "Last 7 days", "30": "Last 30 days", "all": "All"}
_PAGE = 50


async def _list(view: View) -> Response:
    days = view.query("days", "7")
    wanted = {
        "job": view.query("job"),
        "node": view.query("node"),
        "team": view.query("team"),
        "failure_class": view.query("failure_class"),
        "days": days if days in DAYS else "7",
    }
    asked = {name: value or None for name, value in wanted.items() if name != "days"}
    since = None if days == "all" else view.now - timedelta(days=int(wanted["days"]))
    cursor = view.query("cursor")
    page = await view.api.get(
        "/v1/incidents",
        IncidentPage,
        {
            **asked,
            "since": since.isoformat() if since else None,
            "limit": _PAGE,
            "cursor": cursor or None,
        },
    )
    return view.render(
        "incidents/page.html",
        found=page,
        wanted=wanted,
        filtered=any(asked.values()),
        cursor=cursor,
        days=DAYS,
        classes=[item.value for item in FailureClass],
    )


async def _one(view: View) -> Response:
    job_id, attempt = (quote(view.path(name), safe="") for name in ("job_id", "attempt"))
    detail = await view.api.get(f"/v1/incidents/{job_id}/{attempt}", IncidentDetail)
    one = detail.incident
    return view.render(
        "incidents/one.html",
        one=one,
        phases=phases(one, view.now),
        stacks=grouped(detail.stacks),
        steps_lost=_steps_lost(one),
    )


@dataclass(frozen=True)
class Phase:
    """A part of what a failure cost, in seconds from the failure on; work lost lies before it."""

    name: str
    about: str
    kind: str
    first_s: float
    last_s: float
    left: float
    width: float
    """Its place and width in the waterfall, in percent."""

    @property
    def length_s(self) -> float:
        """How long it was."""
        return self.last_s - self.first_s


def phases(one: Incident, now: datetime) -> list[Phase]:
    """Work lost, then the phases of recovery; the last one of an open incident ends now.

    A job that is not started again waits for nothing: its incident was closed with the verdict.
    """
    ends = (
        ("Waits for GPUs", "detected, until the next attempt has its GPUs", one.allocated_at),
        ("Starts its ranks", "GPUs allocated, until all ranks run", one.running_at),
        ("Restores and steps", "ranks run, until the first step", one.first_step_at),
    )
    found: list[tuple[str, str, str, float, float]] = []
    if one.work_lost_s > 0:
        about = "training since the last checkpoint, which is done again"
        found.append(("Work lost", about, "bad", -one.work_lost_s, 0.0))
    at = one.failed_at
    for name, about, end in ends if one.action == "restart" else ():
        until = end or one.closed_at or (now if one.outcome == "open" else None)
        if until is None or until < at:
            break
        first_s, last_s = (moment - one.failed_at for moment in (at, until))
        kind = "run" if end is not None else "warn"
        found.append((name, about, kind, first_s.total_seconds(), last_s.total_seconds()))
        at = until
        if end is None:
            break
    low = min((first for *_, first, _ in found), default=0.0)
    whole = max(max((last for *_, last in found), default=0.0) - low, 1e-9)
    return [
        Phase(
            name,
            about,
            kind,
            first,
            last,
            100 * (first - low) / whole,
            100 * (last - first) / whole,
        )
        for name, about, kind, first, last in found
    ]


def grouped(stacks: list[Stacks]) -> list[tuple[str, list[Stacks]]]:
    """Ranks that stand at the same place, as one: the fewest ranks first, which is the odd one."""
    by_text: dict[str, list[Stacks]] = {}
    for one in stacks:
        by_text.setdefault(one.stacks or one.missing or "", []).append(one)
    return sorted(by_text.items(), key=lambda item: (len(item[1]), item[1][0].rank))


def _steps_lost(one: Incident) -> int | None:
    if one.last_step is None:
        return None
    return max(0, one.last_step - (one.committed_step or 0))


PAGE = Page(
    "incidents",
    "Incidents",
    nav="/incidents",
    icon="incidents",
    get={"/incidents": _list, "/incidents/{job_id}/{attempt}": _one},
)
