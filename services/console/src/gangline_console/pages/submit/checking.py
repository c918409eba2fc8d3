"""Checks a job file's text: errors with their lines, and the plan of a file without errors.

The fields are checked here by the job's own model, and then by REST: a dry run (what quota says)
and a what-if (what the scheduler would do). Nothing is submitted.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from gangline_console.client import ApiError, GatewayAwayError
from gangline_console.page import View
from gangline_console.pages.submit.fields import FIELDS, texts
from gangline_schemas.api.cluster import Team, TeamList
from gangline_schemas.api.jobs import DryRun
from gangline_schemas.api.questions import WhatIf
from gangline_schemas.base import FieldError, field_errors
from gangline_schemas.job import JobSpec
from gangline_schemas.job_file import JobDocument, JobFileError, read_document

NO_FOLDER = (
    "a browser cannot send a folder: submit this file by `gangline submit FILE`, take workdir out, "
    "or name a bundle that was sent before as code_bundle"
)


@dataclass(frozen=True)
class LineError:
    """An error in a file, and its line; without a field it is about the whole file."""

    message: str
    field: str = ""
    line: int | None = None


@dataclass(frozen=True)
class Plan:
    """The outcome of the job if it were submitted. `unknown`: why nothing is known of its start."""

    dry: DryRun
    what_if: WhatIf | None = None
    unknown: str = ""
    team: Team | None = None

    @property
    def expected_cost(self) -> tuple[float, float] | None:
        """Of the whole job, least and most; None without a price or an expected run time."""
        hours = self.dry.spec.expected_runtime_hours
        price = self.what_if.price_per_hour if self.what_if is not None else None
        return None if hours is None or price is None else (price.least * hours, price.most * hours)

    @property
    def never(self) -> bool:
        """Whether it would end at once or wait for ever, as things stand."""
        return self.dry.rejected or (self.what_if is not None and self.what_if.starts == "never")


@dataclass(frozen=True)
class Checked:
    """A file's text, its errors, the texts of the form, and the plan if there are no errors."""

    text: str
    errors: tuple[LineError, ...] = ()
    values: dict[str, str] = field(default_factory=lambda: dict.fromkeys(FIELDS, ""))
    readable: bool = True
    spec: JobSpec | None = None
    plan: Plan | None = None

    @property
    def blocked(self) -> bool:
        """Whether it cannot be submitted as it is."""
        return bool(self.errors) or (self.plan is not None and self.plan.dry.rejected)


def read(text: str) -> Checked:
    """The text with the errors that the job's model finds."""
    try:
        document = read_document(text)
    except JobFileError as error:
        wrong = LineError(f"the file {error.message}", line=error.line)
        return Checked(text, (wrong,), readable=not text.strip())
    values = texts(document.content)
    try:
        spec = JobSpec.model_validate(document.content)
    except ValidationError as error:
        found = field_errors(error, model=JobSpec)
        return Checked(text, placed(document, found), values)
    errors: tuple[LineError, ...] = ()
    if spec.workdir is not None and spec.code_bundle is None:
        errors = placed(document, [FieldError(field="workdir", message=NO_FOLDER)])
    return Checked(text, errors, values, spec=spec)


async def check(view: View, text: str) -> Checked:
    """The same, with REST's errors and the plan."""
    found = await run_in_threadpool(read, text)
    spec = found.spec
    if spec is None or found.errors:
        return found
    body = spec.data()
    dry, what_if, teams = await asyncio.gather(
        view.api.post("/v1/training-jobs", DryRun, body, {"dry_run": True}),
        view.api.post("/v1/what-if", WhatIf, body),
        view.api.get("/v1/teams", TeamList),
        return_exceptions=True,
    )
    if isinstance(dry, ApiError) and dry.status in {403, 409, 422}:
        errors = placed(read_document(text), dry.errors) or (LineError(dry.detail),)
        return Checked(text, errors, found.values, spec=spec)
    if isinstance(dry, BaseException):
        raise dry
    if isinstance(what_if, BaseException) and not isinstance(what_if, ApiError | GatewayAwayError):
        raise what_if
    plan = Plan(
        dry,
        None if isinstance(what_if, BaseException) else what_if,
        str(what_if) if isinstance(what_if, BaseException) else "",
        None if isinstance(teams, BaseException) else _team(teams, spec.team),
    )
    return Checked(text, (), found.values, spec=spec, plan=plan)


def placed(
    document: JobDocument, errors: tuple[FieldError, ...] | list[FieldError]
) -> tuple[LineError, ...]:
    """Errors with the lines of their fields, in the order of the file."""
    found = [LineError(item.message, item.field, document.line(item.field)) for item in errors]
    return tuple(sorted(found, key=lambda item: item.line or 0))


def _team(teams: TeamList, name: str) -> Team | None:
    return next((team for team in teams.teams if team.team == name), None)
