"""Pipelines: the list, one with its runs, and a run with its steps as a graph and over time."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from gangline_console.forms import FormError
from gangline_console.page import Page, View
from gangline_console.pages.pipelines.graph import BOX_HEIGHT, BOX_WIDTH, picture
from gangline_console.pages.pipelines.timeline import timeline
from gangline_schemas.api.pipelines import (
    PipelineDetails,
    PipelineList,
    PipelineRun,
    RunDetails,
    RunList,
    StepWhy,
)
from gangline_schemas.pipeline_file import ParamValue

STATES: dict[str, tuple[str, str]] = {
    "queued": ("wait", "◌"),
    "pending": ("wait", "◌"),
    "checking": ("busy", "?"),
    "ready": ("wait", "◔"),
    "running": ("run", "▶"),
    "stopping": ("warn", "■"),
    "deferred": ("warn", "↻"),
    "succeeded": ("good", "✓"),
    "cached": ("good", "="),
    "skipped": ("off", "→"),
    "failed": ("bad", "✕"),
    "blocked": ("off", "⊘"),
    "cancelled": ("off", "⊘"),
}
"""Kind and icon of each state of a run and of a step."""
_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ENDS = {"succeeded", "failed", "cancelled"}


async def _list(view: View) -> Response:
    found, runs = await asyncio.gather(
        view.api.get("/v1/pipelines", PipelineList),
        view.api.get("/v1/pipeline-runs", RunList, {"limit": 20}),
    )
    return view.render("pipelines/list.html", pipelines=found.pipelines, runs=runs.runs, **_words())


async def _one(view: View) -> Response:
    name = _named(view.path("name"), "pipeline")
    team = view.query("team")
    query = {"team": team} if team else {}
    found = await view.api.get(f"/v1/pipelines/{name}", PipelineDetails, query)
    place = f"/v1/pipelines/{name}/runs"
    runs = await view.api.get(place, RunList, {"team": found.team, "limit": 50})
    return view.render("pipelines/one.html", pipeline=found, runs=runs.runs, **_words())


async def _run(view: View) -> Response:
    run_id = _named(view.path("run_id"), "run")
    run = await view.api.get(f"/v1/pipeline-runs/{run_id}", RunDetails)
    chosen = view.query("step")
    why = None
    if any(step.name == chosen for step in run.step_rows):
        why = await view.api.get(f"/v1/pipeline-runs/{run_id}/steps/{chosen}", StepWhy)
    return view.render(
        "pipelines/run.html",
        run=run,
        picture=picture(run.step_rows),
        timeline=timeline(run.step_rows, view.now),
        why=why,
        ended=run.state in _ENDS,
        box=(BOX_WIDTH, BOX_HEIGHT),
        **_words(),
    )


async def _begin(view: View) -> Response:
    name = _named(view.form.get("pipeline"), "pipeline")
    place = f"/v1/pipelines/{name}/runs?team={quote(view.form.get('team'))}"
    made = await view.api.post(place, PipelineRun, {"params": {}}, key=view.form.get("key"))
    if made.state == "queued":
        return view.go(f"/pipelines/{name}?team={quote(made.team)}")
    return view.go(f"/pipelines/runs/{made.run_id}")


async def _pause(view: View) -> Response:
    name = _named(view.form.get("pipeline"), "pipeline")
    team = quote(view.form.get("team"))
    body = {"paused": view.form.get("paused") == "true"}
    await view.api.post(f"/v1/pipelines/{name}/pause?team={team}", PipelineDetails, body)
    return view.go(f"/pipelines/{name}?team={team}")


async def _change(view: View) -> Response:
    run_id = _named(view.form.get("run"), "run")
    action = view.form.get("action")
    if action not in {"cancel", "retry"}:
        raise FormError(422, "a run can be cancelled or retried")
    made = await view.api.post(f"/v1/pipeline-runs/{run_id}/{action}", RunDetails)
    if made.state == "cancelled" and made.started_at is None:  # it was queued, and is forgotten
        return view.go(f"/pipelines/{made.pipeline}?team={quote(made.team)}")
    return view.go(f"/pipelines/runs/{run_id}")


def _named(text: str, what: str) -> str:
    if not _ID.fullmatch(text):
        raise FormError(404, f"there is no such {what}")
    return text


def started(run: PipelineRun) -> str:
    """The cause of a run in words."""
    if run.kind == "manual":
        return f"by {run.user}"
    return f"{run.trigger}: {run.subject}"


def counts(run: PipelineRun) -> str:
    """The numbers of steps by state."""
    return ", ".join(f"{run.steps[name]} {name}" for name in STATES if run.steps.get(name))


def text(value: ParamValue) -> str:
    """A parameter as text."""
    return value if isinstance(value, str) else str(value).lower()


def _words() -> dict[str, Any]:
    return {"states": STATES, "started": started, "counts": counts, "text": text}


PAGE = Page(
    "pipelines",
    "Pipelines",
    nav="/pipelines",
    icon="pipelines",
    get={"/pipelines": _list, "/pipelines/runs/{run_id}": _run, "/pipelines/{name}": _one},
    post={"/pipelines/run": _begin, "/pipelines/pause": _pause, "/pipelines/change": _change},
)
