"""Teams: their tree with limits and use, budgets, GPUs over time, and the weekly report."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from starlette.responses import Response

from gangline_console.client import ApiError
from gangline_console.page import Page, View
from gangline_schemas.api.cluster import Team, TeamList
from gangline_schemas.api.reports import TeamUse, UtilizationReport, Week, WeeklyReport

DAYS = {"1": "24 hours", "7": "7 days", "30": "30 days"}
_PARTS = 96


async def _teams(view: View) -> Response:
    days = view.query("days", "7")
    days = days if days in DAYS else "7"
    found, report = await asyncio.gather(view.api.get("/v1/teams", TeamList), _report(view, days))
    use = {row.team: row for row in report.teams} if report else {}
    return view.render(
        "teams/page.html",
        teams=[Row.of(team, use.get(team.team), view.now) for team in found.teams],
        report=report,
        uses=[use[row.team] for row in found.teams if row.team in use],
        days=days,
        choices=DAYS,
        lines=_lines(report) if report else {},
    )


async def _report(view: View, days: str) -> UtilizationReport | None:
    since = (view.now - timedelta(days=int(days))).isoformat()
    try:
        return await view.api.part(
            "/v1/reports/utilization", UtilizationReport, {"from": since, "parts": _PARTS}
        )
    except ApiError as error:
        if error.status != 422:
            raise
        return None


async def _weekly(view: View) -> Response:
    week = view.query("week")
    report = await view.api.get("/v1/reports/weekly", WeeklyReport, {"week": week or None})
    return view.render(
        "teams/weekly.html",
        report=report,
        week=week,
        rows=figures(report.this, report.before),
        before_week=_iso(report.this.since - timedelta(days=4)),
        after_week=_iso(report.this.since + timedelta(days=10)),
        this_week=_iso(view.now),
    )


@dataclass(frozen=True)
class Row:
    """A team of the tree, its budget at this pace, and what it used over the time that is shown."""

    team: Team
    use: TeamUse | None
    most: int
    """GPUs at the end of its bar: its limit and what it may borrow, or what it has."""
    expected_hours: float | None
    """GPU-hours at the end of the month at the pace of the month so far."""
    month_ends: datetime

    @classmethod
    def of(cls, team: Team, use: TeamUse | None, now: datetime) -> Row:
        """`now` says how much of the month is over."""
        begins, ends = _month(now)
        over = (now - begins) / (ends - begins)
        expected = team.gpu_hours_this_month / over if over > 0.02 else None
        most = max(team.gpu_limit + team.borrow_limit, team.gpus_used, team.gpu_guarantee, 1)
        return cls(team, use, most, expected, ends)

    @property
    def own(self) -> int:
        """GPUs within the limit."""
        return self.team.gpus_used - self.team.gpus_borrowed

    @property
    def budget_kind(self) -> str:
        """How the budget stands."""
        most = self.team.gpu_hours_per_month
        if self.team.out_of_budget:
            return "bad"
        spent = most is not None and self.expected_hours is not None and self.expected_hours > most
        return "warn" if spent else "good"


def figures(this: Week, before: Week) -> list[tuple[str, str, float | None, float | None, str]]:
    """Name, format, value, value of the week before, and unit of one of each figure of a week."""
    pairs = [
        ("GPU-hours of the cluster", "number", "gpu_hours_total", "GPU-h"),
        ("GPU-hours allocated", "number", "gpu_hours_allocated", "GPU-h"),
        ("Utilization", "percent", "utilization", ""),
        ("GPUs busy", "percent", "gpu_utilization", ""),
    ]
    rows = [
        (name, how, getattr(this.cluster, field), getattr(before.cluster, field), unit)
        for name, how, field, unit in pairs
    ]
    more = [
        ("MFU", "percent", "mfu", ""),
        ("GPU-hours waited for", "number", "gpu_hours_pending", "GPU-h"),
        ("Jobs submitted", "number", "jobs_submitted", "job"),
        ("Jobs succeeded", "number", "jobs_succeeded", "job"),
        ("Jobs failed", "number", "jobs_failed", "job"),
        ("Jobs cancelled", "number", "jobs_cancelled", "job"),
        ("Completion rate", "percent", "completion_rate", ""),
        ("Gangs that failed", "number", "failures", "gang"),
        ("Mean time to running again", "duration", "mttr_s", ""),
        ("Preemptions", "number", "preemptions", ""),
        ("GPU-hours that they cost", "number", "preemption_gpu_hours", "GPU-h"),
    ]
    rows += [(n, how, getattr(this, f), getattr(before, f), unit) for n, how, f, unit in more]
    return rows


@dataclass(frozen=True)
class Line:
    """GPUs of a team over time, as points of a small chart 100 wide and 24 high."""

    points: str
    guarantee: float | None
    """Its height in the chart."""
    most: float
    low: float
    mean: float
    high: float


def _lines(report: UtilizationReport) -> dict[str, Line]:
    return {row.team: _line(row, row.gpus_by_part) for row in report.teams if row.gpus_by_part}


def _line(row: TeamUse, gpus: Sequence[float]) -> Line:
    most = max(*gpus, row.gpu_guarantee or 0, 1.0)
    step = 100 / max(1, len(gpus) - 1)
    return Line(
        points=" ".join(f"{i * step:.2f},{24 - 24 * n / most:.2f}" for i, n in enumerate(gpus)),
        guarantee=24 - 24 * row.gpu_guarantee / most if row.gpu_guarantee else None,
        most=most,
        low=min(gpus),
        mean=row.gpus_allocated_mean,
        high=max(gpus),
    )


def _month(now: datetime) -> tuple[datetime, datetime]:
    begins = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return begins, (begins + timedelta(days=32)).replace(day=1)


def _iso(moment: datetime) -> str:
    year, week, _ = moment.isocalendar()
    return f"{year}-W{week:02d}"


PAGE = Page(
    "teams",
    "Teams",
    nav="/teams",
    icon="teams",
    get={"/teams": _teams, "/teams/weekly": _weekly},
)
