"""One job: its timeline, curves, ranks, log, checkpoints, configuration, events and reasons."""

from __future__ import annotations

from starlette.responses import Response

from gangline_console.client import job_path
from gangline_console.page import Page, View
from gangline_console.pages.job import actions, tabs
from gangline_console.pages.jobs import reason
from gangline_schemas.api.jobs import Job
from gangline_schemas.mlflow_workspace import mlflow_run_id


async def _show(view: View) -> Response:
    job = await view.api.get(job_path(view.path("job_id")), Job)
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


def _address(job: Job, tab: str) -> str:
    """The address of a tab."""
    query = "" if tab == "overview" else f"?tab={tab}"
    return f"/console/jobs/{job.job_id}{query}"


PAGE = Page(
    "job",
    "Job",
    get={"/jobs/{job_id}": _show, "/jobs/{job_id}/job.yaml": actions.job_file},
    post={f"/jobs/{{job_id}}/{name}": handler for name, handler in actions.ACTIONS.items()},
)
