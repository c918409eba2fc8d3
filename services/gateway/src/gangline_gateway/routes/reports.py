"""/v1/reports: reports over a period, as JSON or as an HTML page.

The same question about a period or week has the same answer for 10 s (`reports.recent`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from datetime import datetime
from typing import Annotated, Any, TypeVar

from fastapi import Header, Query
from pydantic import BaseModel
from starlette.responses import HTMLResponse, Response

from gangline_gateway.app_context import App, AppContext, Caller, answers, router, visible_teams
from gangline_gateway.history_access import Queries
from gangline_gateway.problems import invalid
from gangline_gateway.reports import page
from gangline_gateway.reports.facts import Period
from gangline_gateway.reports.period import WEEK, WEEK_PATTERN, PeriodError, span, week_of
from gangline_gateway.reports.source import TooMuchError
from gangline_gateway.reports.utilization import over_time, utilization
from gangline_gateway.reports.weekly import figures
from gangline_schemas.api.reports import UtilizationReport, UtilizationSteps, Week, WeeklyReport

reports = router("Reports")

HTML = "text/html"
_PAGE = {"content": {HTML: {"schema": {"type": "string"}}}}
# The page is text and one style sheet; no script and no fetch is allowed.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Vary": "Accept",
    "Cache-Control": "no-store",
}
Accept = Annotated[str | None, Header(include_in_schema=False)]
Since = Annotated[
    datetime | None, Query(alias="from", description="24 hours before `to` if not given.")
]
Until = Annotated[datetime | None, Query(alias="to", description="Now if not given.")]
ReportT = TypeVar("ReportT", bound=BaseModel)
AnswerT = TypeVar("AnswerT")


@reports.get(
    "/v1/reports/utilization",
    operation_id="reportUtilization",
    summary="Use of GPUs and queue over a period",
    response_model=UtilizationReport,
    responses={200: _PAGE, **answers()},
)
def report_utilization(
    app: App,
    caller: Caller,
    *,
    since: Since = None,
    until: Until = None,
    parts: Annotated[
        int, Query(ge=0, le=200, description="Equal parts of the period for `gpus_by_part`.")
    ] = 0,
    accept: Accept = None,
) -> Any:
    """JSON, or with `Accept: text/html` a page. The cluster's totals count all teams."""
    teams, now = visible_teams(caller), app.clock()

    def read(queries: Queries) -> UtilizationReport:
        return utilization(queries.reports.facts(span(since, until, now)), teams, parts)

    asked = (*_rounded(since, until, now), parts, teams)
    report = app.reports.find(UtilizationReport, asked, now)
    if report is None:
        report = _report(app.history.query, read, "from")
        app.reports.keep(asked, report, now)
    return _answer(report, page.utilization_page, accept)


@reports.get(
    "/v1/reports/utilization/steps",
    operation_id="reportUtilizationSteps",
    summary="Use of GPUs over time",
    response_model=UtilizationSteps,
    responses=answers(),
)
def report_steps(
    app: App,
    caller: Caller,
    *,
    since: Since = None,
    until: Until = None,
    steps: Annotated[int, Query(ge=1, le=500)] = 96,
) -> UtilizationSteps:
    """GPUs that were up and allocated, as means over steps of equal length."""

    def read(queries: Queries) -> UtilizationSteps:
        facts = queries.reports.facts(span(since, until, app.clock()))
        return over_time(facts, steps, visible_teams(caller))

    return _report(app.history.query, read, "from")


@reports.get(
    "/v1/reports/weekly",
    operation_id="reportWeekly",
    summary="A week's figures, and the week before",
    response_model=WeeklyReport,
    responses={200: _PAGE, **answers()},
)
async def report_weekly(
    app: App,
    caller: Caller,
    *,
    week: Annotated[
        str | None,
        Query(
            pattern=WEEK_PATTERN,
            description="ISO week, such as 2026-W47; default: the last 7 days.",
        ),
    ] = None,
    accept: Accept = None,
) -> Any:
    """JSON, or with `Accept: text/html` a page. The current week is compared up to now."""
    teams, now = visible_teams(caller), app.clock()
    report = app.reports.find(WeeklyReport, (week, teams), now)
    if report is None:
        try:
            period = week_of(week, now)
        except PeriodError as error:
            raise invalid(error.field, str(error)) from None
        this, before = await asyncio.gather(
            _week(app, period, teams), _week(app, period.earlier(WEEK), teams)
        )
        report = WeeklyReport(week=week, this=this, before=before)
        app.reports.keep((week, teams), report, now)
    return await asyncio.to_thread(_answer, report, page.weekly_page, accept)


async def _week(app: AppContext, period: Period, teams: frozenset[str] | None) -> Week:
    def read(queries: Queries) -> Week:
        return figures(queries.reports.facts(period, gpu_use=False), teams)

    return await asyncio.to_thread(_report, app.history.query, read, "week")


def _rounded(
    since: datetime | None, until: datetime | None, now: datetime
) -> tuple[Hashable, Hashable]:
    """A period for which reports are the same: one up to now by its length, to a second."""
    if until is not None or since is None or since.tzinfo is None:
        return since, until
    return round((now - since).total_seconds()), None


def _report(
    query: Callable[[Callable[[Queries], AnswerT]], AnswerT],
    ask: Callable[[Queries], AnswerT],
    field: str,
) -> AnswerT:
    try:
        return query(ask)
    except PeriodError as error:
        raise invalid(error.field, str(error)) from None
    except TooMuchError as error:
        raise invalid(field, str(error)) from None


def _answer(
    report: ReportT, render: Callable[[ReportT], str], accept: str | None
) -> ReportT | Response:
    wanted = accept or ""
    if HTML in wanted and "application/json" not in wanted:
        return HTMLResponse(render(report), headers=_PAGE_HEADERS)
    return report
