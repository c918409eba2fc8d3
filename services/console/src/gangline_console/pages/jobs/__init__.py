"""Jobs: a live table with filters, and many jobs cancelled at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import get_args

from starlette.responses import Response

from gangline_console import formats
from gangline_console.client import ApiError, job_path
from gangline_console.ordering import Ways
from gangline_console.page import Page, View
from gangline_console.render import time_tag
from gangline_schemas.api.jobs import Job, JobCounts, JobPage, JobSummary, KnownState

MOST_AT_ONCE = 200
_AT_A_TIME = 8


@dataclass(frozen=True)
class Column:
    """A column of the table that a user may choose."""

    title: str
    text: Callable[[JobSummary, datetime], str]
    number: bool = False
    ways: Ways = field(default_factory=dict)


def _asks(job: JobSummary) -> str:
    return str(job.gpus) if job.cpus is None else f"{job.cpus:g} CPU"


_REVERSE = " reverse"
COLUMNS: Mapping[str, Column] = {
    "team": Column("Team", lambda job, _: job.team),
    "project": Column("Project", lambda job, _: job.project or formats.NONE),
    "user": Column("User", lambda job, _: job.user),
    "priority": Column(
        "Priority", lambda job, _: str(job.priority), number=True,
        ways={"priority": "ascending", f"priority{_REVERSE}": "descending"},
    ),
    "gpus": Column(
        "GPUs", lambda job, _: _asks(job), number=True,
        ways={"gpus": "descending", f"gpus{_REVERSE}": "ascending"},
    ),
    "step": Column("Step", lambda job, _: formats.number(job.step)),
    "loss": Column("Loss", lambda job, _: formats.number(job.loss), number=True),
    "tokens": Column("Tokens/s", lambda job, _: formats.number(job.tokens_per_s), number=True),
    "mfu": Column("MFU", lambda job, _: formats.percent(job.mfu, 1), number=True),
    "left": Column("Left", lambda job, _: formats.duration(_left(job)), number=True),
    "elapsed": Column("Elapsed", lambda job, _: formats.duration(job.elapsed_s), number=True),
    "attempt": Column("Attempt", lambda job, _: str(job.attempt), number=True),
    "started": Column(
        "Started", lambda job, now: time_tag(job.started_at, now),
        ways={"started": "descending", f"started{_REVERSE}": "ascending"},
    ),
    "submitted": Column(
        "Submitted", lambda job, now: time_tag(job.submitted_at, now),
        ways={"": "descending", f"created{_REVERSE}": "ascending"},
    ),
}  # fmt: skip
DEFAULT = ("team", "user", "gpus", "step", "loss", "left", "elapsed", "submitted")


async def _show(view: View) -> Response:
    wanted = {
        "state": view.query_all("state"),
        **{name: view.query(name) for name in ("team", "user", "project", "name", "text")},
        "order": view.query("order"),
        "column": [name for name in view.query_all("column") if name in COLUMNS],
    }
    cursor = view.query("cursor")
    filters = {name: wanted[name] or None for name in wanted if name not in {"order", "column"}}
    order = view.query("order")
    asked = {
        **filters,
        "order_by": order.removesuffix(_REVERSE) or None,
        "reverse": order.endswith(_REVERSE) or None,
        "cursor": cursor or None,
    }
    page, counts, teams = await asyncio.gather(
        view.api.get("/v1/training-jobs", JobPage, asked),
        view.api.get("/v1/training-jobs/counts", JobCounts, {**filters, "state": None}),
        view.teams(),
    )
    return view.render(
        "jobs/page.html",
        jobs=page.jobs,
        counts=counts.states,
        cursor=cursor,
        next_cursor=page.cursor,
        wanted=wanted,
        filtered=any(filters.values()),
        states=get_args(KnownState),
        columns=COLUMNS,
        shown=wanted["column"] or DEFAULT,
        teams=teams,
        cancelled=view.query("cancelled"),
        why=reason,
    )


def _left(job: JobSummary) -> float | None:
    return None if job.ended else job.estimated_remaining_s


async def _cancel(view: View) -> Response:
    """Without `sure`, the page that names what would be cancelled."""
    ids = list(dict.fromkeys(view.form.all("job")))[:MOST_AT_ONCE]
    back = view.form.get("back")
    back = back if back.startswith("?") else ""
    if not ids:
        return view.go(f"/jobs{back}")
    if not view.form.get("sure"):
        jobs = [job for job in await _each(view, ids, "GET") if isinstance(job, Job)]
        return view.render(
            "jobs/cancel.html",
            active=[job for job in jobs if not job.ended],
            ended=[job for job in jobs if job.ended],
            back=back,
        )
    done = await _each(view, ids, "POST")
    failed = [item for item in done if isinstance(item, ApiError)]
    if failed:
        return view.render(
            "jobs/cancelled.html",
            results=list(zip(ids, done, strict=True)),
            failed=len(failed),
            back=back,
        )
    return view.go(f"/jobs{back}{'&' if back else '?'}cancelled={len(done)}")


async def _each(view: View, ids: list[str], method: str) -> list[Job | ApiError]:
    """The job of each id after a request, or why it failed; some at a time."""
    turn = asyncio.Semaphore(_AT_A_TIME)

    async def one(job_id: str) -> Job | ApiError:
        path = job_path(job_id)
        async with turn:
            try:
                if method == "GET":
                    return await view.api.get(path, Job)
                return await view.api.post(f"{path}/cancel", Job)
            except ApiError as error:
                return error

    return await asyncio.gather(*map(one, ids))


def reason(job: JobSummary) -> str:
    """Why the job stands as it does, in one line."""
    if job.waiting is not None:
        return job.waiting.message
    if job.failure is not None and job.state == "failed":
        return job.failure.message
    return job.reason


PAGE = Page(
    "jobs", "Jobs", nav="/jobs", icon="jobs", get={"/jobs": _show}, post={"/jobs/cancel": _cancel}
)
