"""The tabs of a job's page, and their answers of REST."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gangline_console.client import ApiError, Query, Value, job_path
from gangline_console.page import View
from gangline_console.pages.job import timeline
from gangline_schemas.api.checkpoints import CheckpointList
from gangline_schemas.api.incidents import IncidentPage, Notice
from gangline_schemas.api.jobs import Job, RankList
from gangline_schemas.api.logs import BusEvent, EventPage, LogPage
from gangline_schemas.api.questions import Explanation
from gangline_schemas.api.runs import Comparison, RunPage
from gangline_schemas.job_file import write_document

Values = dict[str, Any]
LOG_LINES = 30
_EVENT_PAGES = 5
"""Pages of 1,000 events that a timeline reads: a job with more changes of state is rare."""

MOST_COMPARED_LINES = 2000
"""Of uncommitted changes: the time grows with the square of the lines, to 0.3 s here."""


@dataclass(frozen=True)
class Tab:
    """One tab: its title, and the values of its template `tab_NAME.html`."""

    title: str
    load: Callable[[View, Job], Awaitable[Values]]


async def _overview(view: View, job: Job) -> Values:
    path = job_path(job.job_id)
    events, checkpoints, incidents, lines, past, explained = await asyncio.gather(
        _life(view, path),
        view.api.part(f"{path}/checkpoints", CheckpointList, {"limit": 1000}),
        view.api.part("/v1/incidents", IncidentPage, {**_of(job), "limit": 100}),
        view.api.part(f"{path}/logs", LogPage, {"tail": LOG_LINES}),
        _past_cost(view, job),
        view.api.part(f"{path}/explain", Explanation) if job.state == "pending" else _nothing(),
    )
    rows = checkpoints.checkpoints if checkpoints is not None else []
    line = None
    if events is not None:
        failures = incidents.incidents if incidents is not None else []
        notices = incidents.notices if incidents is not None else []
        line = timeline.build(job, events, rows, failures, notices, view.now)
    return {
        "line": line,
        "lines": lines,
        "incidents": incidents,
        "cost": cost(job, past),
        "explained": explained or None,
        "live": ("events", "metrics", "logs"),
    }


async def _past_cost(view: View, job: Job) -> float | None:
    """Of the attempts that have ended; None where some GPUs have no price, or history is away."""
    if not job.gpu_seconds:
        return 0.0
    asked: Query = {"where": f"run_id = '{job.job_id}'", "limit": 1}
    found = await view.api.part("/v1/runs", RunPage, asked)
    return found.runs[0].cost if found is not None and found.runs else None


def cost(job: Job, past: float | None) -> float | None:
    """Of all attempts of a job, the one that runs up to now; None where it is not known."""
    if not job.running_gpu_seconds:
        return past
    if past is None or job.price_per_hour is None:
        return None
    return past + job.price_per_hour * job.running_gpu_seconds / job.gpus_allocated / 3600


def _of(job: Job) -> dict[str, Value]:
    """The query of a job's incidents, without counts."""
    return {"job": job.job_id, "shares": False}


async def _life(view: View, path: str) -> list[BusEvent] | None:
    """The events of a timeline; None while history is away."""
    found: list[BusEvent] = []
    cursor: str | None = None
    for _ in range(_EVENT_PAGES):
        asked: Query = {"type": timeline.TYPES, "limit": 1000, "cursor": cursor}
        page = await view.api.part(f"{path}/events", EventPage, asked)
        if page is None:
            return found or None
        found += page.events
        cursor = page.cursor
        if len(page.events) < 1000:
            break
    return found


async def _metrics(view: View, job: Job) -> Values:  # noqa: ARG001 - the script reads them
    axis = view.query("x")
    return {"axis": axis if axis == "time" else "step", "live": ("events", "metrics")}


async def _ranks(view: View, job: Job) -> Values:
    path = job_path(job.job_id)
    ranks, incidents = await asyncio.gather(
        view.api.get(f"{path}/ranks", RankList, {"cursor": view.query("cursor") or None}),
        view.api.part("/v1/incidents", IncidentPage, {**_of(job), "limit": 1}),
    )
    slow: dict[int, Notice] = {}
    for notice in incidents.notices if incidents is not None else ():
        if (notice.kind, notice.attempt) == ("straggling", job.attempt):
            slow.setdefault(notice.rank, notice)
    return {"ranks": ranks, "slow": slow, "live": ("events",)}


async def _logs(view: View, job: Job) -> Values:  # noqa: ARG001 - the script reads them
    names = ("rank", "attempt", "find", "errors")
    return {"wanted": {name: view.query(name) for name in names}, "live": ("events", "logs")}


async def _checkpoints(view: View, job: Job) -> Values:
    found = await view.api.get(
        f"{job_path(job.job_id)}/checkpoints",
        CheckpointList,
        {"limit": 1000, "cursor": view.query("cursor") or None},
    )
    rows = found.checkpoints
    left_out = 0 if view.query("deleted") else sum(row.status == "deleted" for row in rows)
    if left_out:
        rows = [row for row in rows if row.status != "deleted"]
    return {"found": found, "rows": rows, "left_out": left_out, "live": ("events",)}


async def _config(view: View, job: Job) -> Values:
    other = view.query("with")
    diff, others, compared = await asyncio.gather(
        _uncommitted(view, job.job_id),
        _uncommitted(view, other) if other else _nothing(),
        _compared(view, job.job_id, other),
    )
    text = write_document(job.spec) if job.spec is not None else ""
    own, theirs = diff.splitlines(), others.splitlines()
    too_long = max(len(own), len(theirs)) > MOST_COMPARED_LINES
    named = (job.job_id, other)
    changed = [] if too_long else await asyncio.to_thread(_changed, own, theirs, *named)
    values = {"diff": own, "changed": changed, "both": bool(own and theirs), "too_long": too_long}
    return {"text": text, **values, "other": other, "compared": compared, "live": ("events",)}


def _changed(own: list[str], theirs: list[str], job_id: str, other: str) -> list[str]:
    return list(difflib.unified_diff(own, theirs, job_id, other, lineterm=""))


async def _uncommitted(view: View, job_id: str) -> str:
    """The changes that were sent with a job and not committed; "": none, or they are not known."""
    asked: Query = {"limit": 1}
    try:
        first = await view.api.part(f"{job_path(job_id)}/events", EventPage, asked)
    except ApiError:  # the comparison says what is wrong with the job
        return ""
    if first is None or not first.events or first.events[0].type != "job.submitted":
        return ""
    return str(first.events[0].data.get("spec", {}).get("code_diff") or "")


async def _nothing() -> str:
    return ""


async def _compared(view: View, job_id: str, other: str) -> Comparison | str | None:
    """The comparison with another run, or why there is none."""
    if not other:
        return None
    query: Query = {"run": [job_id, other], "curves": False}
    try:
        return await view.api.get("/v1/runs/compare", Comparison, query)
    except ApiError as error:
        return error.detail


async def _events(view: View, job: Job) -> Values:
    kind = view.query("type")
    page = await view.api.get(
        f"{job_path(job.job_id)}/events",
        EventPage,
        {"limit": 200, "cursor": view.query("cursor") or None, "type": kind or None},
    )
    texts = {
        event.id: json.dumps(event.data, indent=2, ensure_ascii=False) for event in page.events
    }
    more = page.cursor if len(page.events) == 200 else None
    return {"page_of": page, "texts": texts, "more": more, "kind": kind, "live": ("events",)}


async def _explain(view: View, job: Job) -> Values:
    found = await view.api.get(f"{job_path(job.job_id)}/explain", Explanation)
    return {"explained": found, "live": ("events",)}


TABS: Mapping[str, Tab] = {
    "overview": Tab("Overview", _overview),
    "metrics": Tab("Metrics", _metrics),
    "ranks": Tab("Ranks", _ranks),
    "logs": Tab("Log", _logs),
    "checkpoints": Tab("Checkpoints", _checkpoints),
    "config": Tab("Configuration", _config),
    "events": Tab("Events", _events),
    "explain": Tab("Explain", _explain),
}
