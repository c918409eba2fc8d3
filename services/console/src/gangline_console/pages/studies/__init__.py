"""Studies: all searches with their progress, best value and cost; a form that submits one."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from dataclasses import dataclass
from urllib.parse import quote

from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from gangline_console.client import ApiError, GatewayAwayError
from gangline_console.page import Page, View
from gangline_console.pages.submit.checking import NO_FOLDER, LineError, placed
from gangline_schemas.api.studies import StudyDetail, StudyPage, StudyPlan
from gangline_schemas.base import FieldError, field_errors
from gangline_schemas.job_file import JobFileError, read_document
from gangline_schemas.study_file import StudySpec

STATES: dict[str, tuple[str, str]] = {
    "running": ("run", "▶"),
    "ending": ("warn", "◌"),
    "ended": ("off", "■"),
}
"""Kind and icon of each state of a study."""
REASONS = {
    "trials": "all its trials have ended",
    "exhausted": "each point of its grid was tried",
    "gpu_hours": "its GPU-hours are spent",
    "failed": "too many trials failed",
    "deadline": "its deadline has passed",
    "stopped": "it was stopped",
    "sampler": "its sampler could propose no trial",
}
"""Why a study ends or has ended."""


START = """\
name: my-study
team: {team}
objective: {{metric: eval_loss, direction: minimize}}
space:
  lr: {{type: float, low: 1.0e-4, high: 1.0e-2, log: true}}
limits: {{trials: 8, parallel: 2}}
job:
  command: [python, -m, gangline_worker.training]
  resources: {{gpus: 1}}
  hyperparameters: {{steps: 100, eval_every_steps: 20}}
"""


@dataclass(frozen=True)
class Draft:
    """A study file that is being written, with its errors, or its plan."""

    text: str = ""
    errors: tuple[LineError, ...] = ()
    plan: StudyPlan | None = None


def read(text: str) -> tuple[StudySpec | None, tuple[LineError, ...]]:
    """The spec of a file's text; None with the errors that its model finds."""
    try:
        document = read_document(text)
    except JobFileError as error:
        return None, (LineError(f"the file {error.message}", line=error.line),)
    try:
        spec = StudySpec.model_validate(document.content)
    except ValidationError as error:
        return None, placed(document, field_errors(error, model=StudySpec))
    if "workdir" in spec.job and "code_bundle" not in spec.job:
        wrong = FieldError(
            field="job.workdir", message=NO_FOLDER.replace(" submit", " study submit")
        )
        return None, placed(document, [wrong])
    return spec, ()


async def _submit(view: View) -> Response:
    """The study's page; with `check`, or if something is wrong, this page with the text."""
    text = view.form.get("text").replace("\r\n", "\n")
    spec, errors = await run_in_threadpool(read, text)
    plan = None
    if spec is not None:
        body = spec.data()
        try:
            if view.form.get("check"):
                plan = await view.api.post("/v1/studies", StudyPlan, body, {"dry_run": True})
            else:
                digest = hashlib.sha256(spec.encode()).hexdigest()
                key = f"console-{view.form.get('nonce')[:64]}-{digest[:24]}"
                made = await view.api.post("/v1/studies", StudyDetail, body, key=key)
                return view.go(f"/studies/{quote(made.study_id, safe='')}")
        except ApiError as error:
            if error.status == 401:
                raise
            errors = placed(read_document(text), error.errors) or (LineError(error.detail),)
        except GatewayAwayError as error:
            why = f"it is not known whether the study was submitted: {error}; try again"
            errors = (LineError(why),)
    return await _show(view, Draft(text, errors, plan))


async def _show(view: View, draft: Draft | None = None) -> Response:
    wanted = {name: view.query(name) for name in ("state", "team", "name")}
    asked = {name: text or None for name, text in wanted.items()}
    cursor = view.query("cursor")
    page, teams = await asyncio.gather(
        view.api.get("/v1/studies", StudyPage, {**asked, "cursor": cursor or None}),
        view.teams(),
    )
    own = next((team for team in (*view.who.teams, "default") if team in teams), "default")
    return view.render(
        "studies/page.html",
        422 if draft is not None and draft.errors else 200,
        draft=draft,
        text=START.format(team=own) if draft is None else draft.text,
        nonce=view.form.get("nonce") or secrets.token_hex(12),
        reasons=REASONS,
        studies=page.studies,
        next_cursor=page.cursor,
        cursor=cursor,
        wanted=wanted,
        filtered=any(wanted.values()),
        teams=teams,
        states=STATES,
    )


PAGE = Page(
    "studies",
    "Studies",
    nav="/studies",
    icon="studies",
    key="d",
    get={"/studies": _show},
    post={"/studies": _submit},
)
