"""One job: how it stands, its curve of the loss, the end of its log."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from gangline_console.client import ApiError, job_path
from gangline_console.page import Page, View
from gangline_console.pages.jobs import reason
from gangline_schemas.api.jobs import Job
from gangline_schemas.api.logs import LogPage

LINES = 60


async def _show(view: View) -> Response:
    path = job_path(view.path("job_id"))
    job, lines = await asyncio.gather(view.api.get(path, Job), _log(view, path))
    return view.render("job/page.html", job=job, lines=lines, why=reason(job))


async def _log(view: View, path: str) -> LogPage | None:
    """The last lines; None while history is away, which the page says."""
    try:
        return await view.api.get(f"{path}/logs", LogPage, {"tail": LINES})
    except ApiError as error:
        if error.status != 503:
            raise
        return None


PAGE = Page("job", "Job", get={"/jobs/{job_id}": _show})
