"""Search: a job by its id, else jobs whose name begins so."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.responses import Response

from gangline_console.client import ApiError, job_path
from gangline_console.page import Page, View
from gangline_schemas.api.jobs import Job


async def _search(view: View) -> Response:
    text = view.query("q")
    if text:
        try:
            found = await view.api.get(job_path(text), Job)
            return view.go(f"/jobs/{found.job_id}")
        except ApiError as error:
            if error.status not in {404, 422}:
                raise
    return view.go(f"/jobs?{urlencode({'name': text})}" if text else "/jobs")


PAGE = Page("search", "Search", get={"/search": _search})
