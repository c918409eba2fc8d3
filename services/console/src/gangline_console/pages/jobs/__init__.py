"""Jobs: a live table with filters, and many jobs cancelled at once."""

from __future__ import annotations

import asyncio
from typing import get_args

from starlette.responses import Response

from gangline_console.client import ApiError, job_path
from gangline_console.page import Page, View
from gangline_schemas.api.cluster import TeamList
from gangline_schemas.api.jobs import Job, JobPage, JobSummary, KnownState

FILTERS = ("state", "team", "user", "name")
MOST_AT_ONCE = 200
_AT_A_TIME = 8


async def _show(view: View) -> Response:
    wanted = {
        "state": view.query_all("state"),
        "team": view.query("team"),
        "user": view.query("user"),
        "name": view.query("name"),
    }
    cursor = view.query("cursor")
    asked = {name: value or None for name, value in wanted.items()}
    page, teams = await asyncio.gather(
        view.api.get("/v1/training-jobs", JobPage, {**asked, "cursor": cursor or None}),
        view.api.get("/v1/teams", TeamList),
    )
    return view.render(
        "jobs/page.html",
        jobs=page.jobs,
        cursor=cursor,
        next_cursor=page.cursor,
        wanted=wanted,
        filtered=any(wanted.values()),
        states=get_args(KnownState),
        teams=sorted(team.team for team in teams.teams),
        cancelled=view.query("cancelled"),
        why=reason,
    )


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
