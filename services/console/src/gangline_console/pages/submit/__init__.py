"""Submit: a job file in an editor and in a form, checked while one types, with its plan beside."""

from __future__ import annotations

import secrets
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from gangline_console.client import ApiError, GatewayAwayError, job_path
from gangline_console.page import PREFIX, Page, View
from gangline_console.pages.submit.checking import Checked, LineError, check, placed, read
from gangline_console.pages.submit.editing import EditError, set_field
from gangline_console.pages.submit.examples import examples, summary
from gangline_console.pages.submit.fields import FIELDS, GROUPS, descriptions
from gangline_schemas.api.jobs import Job
from gangline_schemas.job_file import JobFileError, read_document, write_document

START = """\
name: my-job
team: {team}
run: |
  echo "rank $RANK of $WORLD_SIZE"
resources: {{gpus: 1}}
"""


async def _show(view: View) -> Response:
    """With a job's file (`from`), an example, or a short file; the script asks for the plan."""
    source, note, teams = view.query("from"), "", await view.teams()
    if source:
        job = await view.api.get(job_path(source), Job)
        if job.spec is None:
            text, note = "", f"The file of {job.name} is not known any more: begin with an example."
        else:
            text, note = (
                write_document(job.spec.without_trial()),
                f"A copy of {job.name} ({job.job_id}).",
            )
    else:
        text = examples().get(view.query("example"), "")
    text = text or START.format(team=_first_team(view, teams))
    return _page(view, read(text), teams, note)


def _first_team(view: View, teams: list[str]) -> str:
    own = [*view.who.teams, "default"]
    return next((name for name in own if name in teams), teams[0] if teams else own[0])


def _page(
    view: View, checked: Checked, teams: list[str], note: str = "", status: int = 200
) -> Response:
    return view.render(
        "submit/page.html",
        status,
        checked=checked,
        result=result(checked),
        groups=GROUPS,
        about=descriptions(),
        teams=teams,
        examples={name: summary(text) for name, text in examples().items()},
        note=note,
        nonce=view.form.get("nonce") or secrets.token_hex(12),
    )


async def _check(view: View) -> Response:
    """The result of a check as a part of the page; first, fields of the form are changed."""
    text, problem = _text(view), ""
    for name, value in zip(view.form.all("field"), view.form.all("value"), strict=False):
        try:
            if name in FIELDS:
                text = await run_in_threadpool(set_field, text, name, FIELDS[name].value(value))
        except (EditError, JobFileError) as error:
            problem = str(error)
    checked = await check(view, text)
    return view.render("submit/checked.html", checked=checked, result=result(checked, problem))


async def _submit(view: View) -> Response:
    """The job's page, or this page with what is wrong: no failure loses the text.

    The key is of this page and this job: a second click finds the job of the first.
    """
    text = _text(view)
    checked = await run_in_threadpool(read, text)
    if checked.spec is None or checked.errors:
        return _page(view, checked, await view.teams(), status=422)
    key = f"console-{view.form.get('nonce')[:64]}-{checked.spec.digest()[:24]}"
    try:
        job = await view.api.post("/v1/training-jobs", Job, checked.spec.data(), key=key)
    except ApiError as error:
        if error.status == 401:
            raise
        errors = placed(read_document(text), error.errors) or (LineError(error.detail),)
        return await _again(view, checked, errors, error.status)
    except GatewayAwayError as error:
        why = f"it is not known whether the job was submitted: {error}; a second click is safe"
        return await _again(view, checked, (LineError(why),), 503)
    return RedirectResponse(f"{PREFIX}/jobs/{job.job_id}", 303)


async def _again(
    view: View, checked: Checked, errors: tuple[LineError, ...], status: int
) -> Response:
    wrong = Checked(checked.text, errors, checked.values, spec=checked.spec)
    return _page(view, wrong, await view.teams(), status=status)


def _text(view: View) -> str:
    return view.form.get("text").replace("\r\n", "\n")


def result(checked: Checked, problem: str = "") -> dict[str, Any]:
    """The part of a check that the page's script reads; the plan is HTML beside it."""
    return {
        "text": checked.text,
        "values": checked.values,
        "readable": checked.readable,
        "problem": problem,
        "blocked": checked.blocked,
        "errors": [
            {"line": item.line, "field": item.field, "message": item.message}
            for item in checked.errors
        ],
    }


PAGE = Page(
    "submit",
    "Submit",
    nav="/submit",
    icon="submit",
    timeless=True,
    get={"/submit": _show},
    post={"/submit": _submit, "/submit/check": _check},
)
