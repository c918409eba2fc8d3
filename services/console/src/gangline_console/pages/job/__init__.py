"""One job: its timeline, curves, ranks, log, checkpoints, configuration, events and reasons."""

from __future__ import annotations

import re
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from gangline_console.client import ApiError, job_path
from gangline_console.page import Page, View
from gangline_console.pages.job import actions, tabs
from gangline_console.pages.jobs import reason
from gangline_schemas.api.jobs import Job
from gangline_schemas.api.runs import RunPage
from gangline_schemas.mlflow_workspace import mlflow_run_id

_MLFLOW_RUN = re.compile(r"[0-9a-f]{32}")


async def _show(view: View) -> Response:
    try:
        job = await view.api.get(job_path(view.path("job_id")), Job)
    except ApiError as error:
        if error.status != 404:
            raise
        return await _of_mlflow(view, view.path("job_id"), error)
    wanted = view.query("tab")
    tab = wanted if wanted in tabs.TABS else "overview"
    values = await tabs.TABS[tab].load(view, job)
    return view.render(
        "job/page.html",
        job=job,
        tab=tab,
        tabs=[(name, item.title, _address(job, name)) for name, item in tabs.TABS.items()],
        why=reason(job),
        mlflow_run=mlflow_run_id(job.job_id),
        done=actions.DONE.get(view.query("done"), ""),
        **values,
    )


async def _of_mlflow(view: View, run_id: str, error: ApiError) -> Response:
    """MLflow's page of a run that one of its clients made; raises `error` if there is none.

    Tables of runs list such runs too, and they have no job.
    """
    if not _MLFLOW_RUN.fullmatch(run_id):
        raise error
    found = await view.api.get("/v1/runs", RunPage, {"where": f"run_id = '{run_id}'", "limit": 1})
    if not found.runs:
        raise error
    team = quote(found.runs[0].team, safe="")
    return RedirectResponse(f"/mlflow/teams/{team}/#/runs/{run_id}", 303)


def _address(job: Job, tab: str) -> str:
    """The address of a tab."""
    query = "" if tab == "overview" else f"?tab={tab}"
    return f"/console/jobs/{job.job_id}{query}"


PAGE = Page(
    "job",
    "Job",
    under="jobs",
    get={"/jobs/{job_id}": _show, "/jobs/{job_id}/job.yaml": actions.job_file},
    post={f"/jobs/{{job_id}}/{name}": handler for name, handler in actions.ACTIONS.items()},
)
