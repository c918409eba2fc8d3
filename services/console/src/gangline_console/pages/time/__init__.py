"""Time machine: jobs, queue and GPUs as they were at a time, and what differs from another one.

The script reads the map of GPUs and the steps of jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from starlette.responses import Response

from gangline_console.client import ApiError, Query
from gangline_console.page import Page, View
from gangline_schemas.api.history import HistoryRange, JobAt, PlatformAt
from gangline_schemas.api.runs import RunPage

STEPS = (
    ("1 day", timedelta(days=1)),
    ("1 hour", timedelta(hours=1)),
    ("10 minutes", timedelta(minutes=10)),
    ("1 minute", timedelta(minutes=1)),
)
NOT_READ_YET = "not-read-yet"
_ROWS = 100
"""Of each table, until all are asked for."""
_ENDED = 20


@dataclass(frozen=True)
class Difference:
    """One thing that differs between two times: what it was, and what it is then."""

    kind: str
    name: str
    before: str
    after: str


async def _show(view: View) -> Response:
    bounds = await view.api.get("/v1/history/range", HistoryRange)
    at, wrong = _moment(view.query("at"), bounds.newest)
    against, also_wrong = _moment(view.query("against"), None)
    found = other = ended = None
    reading, rows = "", None if view.query("all") else _ROWS
    if bounds.earliest is not None and at is not None:
        at = min(max(at, bounds.earliest), bounds.newest)
        try:
            found, ended = await asyncio.gather(
                _at(view, at, rows if against is None else None, nodes=against is not None),
                _ended(view, at),
            )
            if against is not None:
                against = min(max(against, bounds.earliest), bounds.newest)
                other = await _at(view, against, None, nodes=True)
        except ApiError as error:
            if error.code != NOT_READ_YET:
                raise
            reading, found = error.detail, None
    answer = view.render(
        "time/page.html",
        bounds=bounds,
        at=at,
        against=against,
        found=found,
        other=other,
        rows=rows,
        ended=ended,
        until=_until(at) if at else "",
        reading=reading,
        wrong=wrong or also_wrong,
        differences=list(differences(*sorted((other, found), key=lambda one: one.at)))
        if other and found
        else [],
        steps=_steps(bounds, at),
        iso=_iso,
    )
    if reading:
        answer.headers["refresh"] = "1"
    return answer


async def _at(view: View, at: datetime, limit: int | None, *, nodes: bool) -> PlatformAt:
    query: Query = {"time": at.isoformat(), "limit": limit, "nodes": nodes}
    return await view.api.get("/v1/history/at", PlatformAt, query)


async def _ended(view: View, at: datetime) -> RunPage | None:
    """The jobs that ended last before a time; None while history is away."""
    query: Query = {"where": _until(at), "order_by": "ended_at DESC", "kind": "job"}
    return await view.api.part("/v1/runs", RunPage, {**query, "limit": _ENDED})


def _until(at: datetime) -> str:
    return f"ended_at <= '{at.isoformat()}'"


def _moment(text: str, default: datetime | None) -> tuple[datetime | None, str]:
    """A time of the address, and what is wrong with it. One without a zone is UTC."""
    if not text:
        return default, ""
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC), ""
    except (ValueError, OverflowError):
        return default, f"{text[:40]} is no time: write 2026-11-21T14:30:00Z"


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _steps(bounds: HistoryRange, at: datetime | None) -> list[tuple[str, str]]:
    """Names and times of the buttons, the earliest first; those out of the range are left out."""
    if at is None or bounds.earliest is None:
        return []
    back = [(f"- {name}", at - by) for name, by in STEPS]
    ahead = [(f"+ {name}", at + by) for name, by in reversed(STEPS)]
    within = [(name, to) for name, to in back + ahead if bounds.earliest <= to <= bounds.newest]
    return [(name, _iso(to)) for name, to in within]


def differences(before: PlatformAt, after: PlatformAt) -> Iterator[Difference]:
    """The differences: jobs that came, went or changed, and nodes."""
    old = {job.job_id: job for job in before.jobs}
    new = {job.job_id: job for job in after.jobs}
    for job_id in sorted(old.keys() | new.keys()):
        was = _job(old[job_id]) if job_id in old else "not there"
        now = _job(new[job_id]) if job_id in new else "not there"
        if was != now:
            yield Difference("job", job_id, was, now)
    places = {node.node_id: node.status for node in before.gpus.nodes}
    later = {node.node_id: node.status for node in after.gpus.nodes}
    for node_id in sorted(places.keys() | later.keys()):
        was, now = places.get(node_id, "not there"), later.get(node_id, "not there")
        if was != now:
            yield Difference("node", node_id, was, now)


def _job(job: JobAt) -> str:
    """A job's standing in a few words, equal while nothing changes."""
    words = [job.state, f"attempt {job.attempt}"]
    if job.gpus_allocated:
        nodes = ", ".join(dict.fromkeys(place.node_id for place in job.nodes))
        words.append(f"{job.gpus_allocated} GPUs on {nodes}")
    if job.checkpoint_step is not None:
        words.append(f"checkpoint at step {job.checkpoint_step:,}")
    return ", ".join(words)


PAGE = Page("time", "Time machine", nav="/time", icon="time", key="m", get={"/time": _show})
