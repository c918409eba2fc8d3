"""`gangline report utilization, report weekly`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from gangline import render
from gangline.errors import CliError, ExitCode
from gangline.render import NONE, Column
from gangline.session import Session
from gangline_schemas.api.reports import (
    LowMfu,
    TeamUse,
    UnusedQuota,
    UtilizationReport,
    Waits,
    Week,
    WeeklyReport,
)


def _quota(use: TeamUse) -> str:
    return NONE if use.gpu_limit is None else f"{use.gpu_guarantee}/{use.gpu_limit}"


_TEAMS: tuple[Column[TeamUse], ...] = (
    Column("TEAM", lambda use: use.team, flexible=True),
    Column("GPUS", lambda use: str(use.gpus_allocated), right=True),
    Column("QUOTA", _quota, right=True),
    Column("GPU-H", lambda use: _hours(use.gpu_hours_allocated), right=True),
    Column("USED", lambda use: render.percent(use.utilization), right=True),
    Column("BUSY", lambda use: render.percent(use.gpu_utilization), right=True),
    Column("MFU", lambda use: render.percent(use.mfu), right=True),
    Column("WAITS", lambda use: str(use.gpus_pending), right=True),
    Column("WAITED", lambda use: _hours(use.gpu_hours_pending), right=True),
)
_COST = Column[TeamUse]("COST", lambda use: render.number(use.cost), right=True)
_FIGURES: tuple[Column[tuple[str, str, str]], ...] = (
    Column("", lambda row: row[0], flexible=True),
    Column("THIS WEEK", lambda row: row[1], right=True),
    Column("BEFORE", lambda row: row[2], right=True),
)
_UNUSED: tuple[Column[UnusedQuota], ...] = (
    Column("UNUSED QUOTA OF", lambda quota: quota.team, flexible=True),
    Column("GUARANTEE", lambda quota: str(quota.gpu_guarantee), right=True),
    Column("GPUS", lambda quota: f"{quota.gpus_allocated_mean:,.1f}", right=True),
    Column("USED", lambda quota: render.percent(quota.used), right=True),
)
_LOW_MFU: tuple[Column[LowMfu], ...] = (
    Column("LOW MFU OF", lambda job: job.job_id, flexible=True),
    Column("TEAM", lambda job: job.team, flexible=True),
    Column("MFU", lambda job: render.percent(job.mfu), right=True),
    Column("GPU-H", lambda job: _hours(job.gpu_hours), right=True),
)
HtmlFile = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write an HTML page instead."),
]


def utilization(
    session: Session,
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Start: 2026-11-20 or 2026-11-20T08:00, UTC; default: a day before --to.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", help="End; default: now."),
    ] = None,
    html: HtmlFile = None,
) -> None:
    """Each team's use of the GPUs over a period, and its waits for them."""
    start, end = _moment("--from", since), _moment("--to", until)
    if html is not None:
        page = session.client.report_page("utilization", since=start, until=end)
        _write(session, html, page)
    if html is None or session.out.json:
        found = session.client.report_utilization(start, end)
        session.out.show(found, utilization_text(found))


def weekly(
    session: Session,
    week: Annotated[
        str | None, typer.Option(metavar="2026-W47", help="An ISO week; default: the last 7 days.")
    ] = None,
    html: HtmlFile = None,
) -> None:
    """Waits and runs of a week, compared with the week before."""
    if html is not None:
        _write(session, html, session.client.report_page("weekly", week=week))
    if html is None or session.out.json:
        found = session.client.report_weekly(week)
        session.out.show(found, weekly_text(found))


def utilization_text(found: UtilizationReport) -> str:
    """The report in 80 columns."""
    use = found.cluster
    allocated, total = _hours(use.gpu_hours_allocated), _hours(use.gpu_hours_total)
    lines = [
        _period(found.since, found.until),
        f"GPUs        {use.gpus_total} now, {use.gpus_total_mean:,.1f} on average",
        f"allocated   {use.gpus_allocated} now, {use.gpus_allocated_mean:,.1f} on average",
        f"GPU-hours   {allocated} of {total} allocated: {render.percent(use.utilization)}",
        *(
            [f"CPU-hours   {_hours(use.cpu_hours_allocated)} in jobs without GPUs"]
            if use.cpu_hours_allocated
            else []
        ),
        *([f"cost        {render.number(use.cost)}"] if use.cost is not None else []),
        f"GPUs busy   {render.percent(use.gpu_utilization)}, MFU {render.percent(found.mfu)}",
        f"waited for  {found.gpus_pending} GPUs now, {_hours(found.gpu_hours_pending)} GPU-hours",
    ]
    if found.teams:
        priced = any(team.cost is not None for team in found.teams)
        columns = (*_TEAMS[:4], _COST, *_TEAMS[4:]) if priced else _TEAMS
        lines += ["", render.listing(columns, found.teams)]
    return "\n".join(lines)


def weekly_text(found: WeeklyReport) -> str:
    """The report in 80 columns."""
    this, before = found.this, found.before
    figures = [
        (name, now, then)
        for (name, now), (_, then) in zip(_figures(this), _figures(before), strict=True)
    ]
    blocks = [
        f"{f'{found.week}: ' if found.week else ''}{_period(this.since, this.until)}",
        render.listing(_FIGURES, figures),
        _waits("GPUS", this.wait_by_gpus, before.wait_by_gpus),
        _waits("PRIORITY", this.wait_by_priority, before.wait_by_priority),
    ]
    if this.unused_quota:
        blocks.append(render.listing(_UNUSED, this.unused_quota))
    if this.low_mfu:
        blocks.append(render.listing(_LOW_MFU, this.low_mfu))
    return "\n\n".join(blocks)


def _figures(week: Week) -> list[tuple[str, str]]:
    ended = f"{week.jobs_succeeded}/{week.jobs_failed}/{week.jobs_cancelled}"
    return [
        ("GPU-hours", _hours(week.cluster.gpu_hours_total)),
        ("GPU-hours allocated", _hours(week.cluster.gpu_hours_allocated)),
        ("utilization", render.percent(week.cluster.utilization)),
        ("GPUs busy", render.percent(week.cluster.gpu_utilization)),
        ("MFU", render.percent(week.mfu)),
        ("GPU-hours waited for", _hours(week.gpu_hours_pending)),
        ("jobs submitted", str(week.jobs_submitted)),
        ("succeeded/failed/cancelled", ended),
        ("completion rate", render.percent(week.completion_rate)),
        ("queue wait, P50", render.duration(week.wait.p50_s)),
        ("queue wait, P95", render.duration(week.wait.p95_s)),
        ("gangs that failed", str(week.failures)),
        ("mean time to running again", render.duration(week.mttr_s)),
        ("preemptions", str(week.preemptions)),
        ("GPU-hours that they cost", _hours(week.preemption_gpu_hours)),
    ]


def _waits(title: str, rows: Sequence[Waits], before: Sequence[Waits]) -> str:
    older = {row.name: row.p95_s for row in before}
    columns: list[Column[Waits]] = [
        Column(title, lambda row: row.name, right=True),
        Column("STARTED", lambda row: str(row.jobs), right=True),
        Column("P50", lambda row: render.duration(row.p50_s), right=True),
        Column("P95", lambda row: render.duration(row.p95_s), right=True),
        Column("P95 BEFORE", lambda row: render.duration(older.get(row.name)), right=True),
        Column("WAITING", lambda row: str(row.waiting), right=True),
    ]
    return render.listing(columns, rows)


def _moment(option: str, text: str | None) -> datetime | None:
    """A time as it is written; without a zone it is UTC, as everything that is shown."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise CliError(
            f"{option} {text!r} is no time", "write 2026-11-20 or 2026-11-20T08:00Z", ExitCode.USAGE
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _write(session: Session, path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise CliError(
            f"{path} cannot be written: {error.strerror}", "give another --html FILE"
        ) from None
    session.out.note(f"the report is in {path}")


def _period(since: datetime, until: datetime) -> str:
    return f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC"


def _hours(hours: float) -> str:
    """A small cluster's hours are small: below 10 a second digit is shown."""
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.2f}"
