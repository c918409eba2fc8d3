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
from gangline_schemas.api.reports import TeamUse, UtilizationReport, Waits, Week, WeeklyReport

_TEAMS = (
    Column("TEAM", flexible=True),
    Column("GPUS", right=True),
    Column("QUOTA", right=True),
    Column("GPU-H", right=True),
    Column("USED", right=True),
    Column("BUSY", right=True),
    Column("MFU", right=True),
    Column("WAITS", right=True),
    Column("WAITED", right=True),
)
_FIGURES = (
    Column("", flexible=True),
    Column("THIS WEEK", right=True),
    Column("BEFORE", right=True),
)
_UNUSED = (
    Column("UNUSED QUOTA OF", flexible=True),
    Column("GUARANTEE", right=True),
    Column("GPUS", right=True),
    Column("USED", right=True),
)
_LOW_MFU = (
    Column("LOW MFU OF", flexible=True),
    Column("TEAM", flexible=True),
    Column("MFU", right=True),
    Column("GPU-H", right=True),
)
HtmlFile = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write it as a page instead."),
]


def utilization(
    session: Session,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="2026-11-20 or 2026-11-20T08:00, in UTC."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Else now; --from is a day before.")
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
        str | None, typer.Option(metavar="2026-W47", help="An ISO week; else the last 7 days.")
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
        f"GPUs busy   {render.percent(use.gpu_utilization)}, MFU {render.percent(found.mfu)}",
        f"waited for  {found.gpus_pending} GPUs now, {_hours(found.gpu_hours_pending)} GPU-hours",
    ]
    if found.teams:
        lines += ["", render.table(_TEAMS, [_team(team) for team in found.teams])]
    return "\n".join(lines)


def _team(use: TeamUse) -> list[str]:
    quota = NONE if use.gpu_limit is None else f"{use.gpu_guarantee}/{use.gpu_limit}"
    return [
        use.team,
        str(use.gpus_allocated),
        quota,
        _hours(use.gpu_hours_allocated),
        render.percent(use.utilization),
        render.percent(use.gpu_utilization),
        render.percent(use.mfu),
        str(use.gpus_pending),
        _hours(use.gpu_hours_pending),
    ]


def weekly_text(found: WeeklyReport) -> str:
    """The report in 80 columns."""
    this, before = found.this, found.before
    figures = [
        [name, now, then]
        for (name, now), (_, then) in zip(_figures(this), _figures(before), strict=True)
    ]
    blocks = [
        f"{f'{found.week}: ' if found.week else ''}{_period(this.since, this.until)}",
        render.table(_FIGURES, figures),
        _waits("GPUS", this.wait_by_gpus, before.wait_by_gpus),
        _waits("PRIORITY", this.wait_by_priority, before.wait_by_priority),
    ]
    if this.unused_quota:
        rows = [
            [q.team, str(q.gpu_guarantee), f"{q.gpus_allocated_mean:,.1f}", render.percent(q.used)]
            for q in this.unused_quota
        ]
        blocks.append(render.table(_UNUSED, rows))
    if this.low_mfu:
        rows = [
            [job.job_id, job.team, render.percent(job.mfu), _hours(job.gpu_hours)]
            for job in this.low_mfu
        ]
        blocks.append(render.table(_LOW_MFU, rows))
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
    older = {row.name: row for row in before}
    columns = [
        Column(title, right=True), Column("STARTED", right=True), Column("P50", right=True),
        Column("P95", right=True), Column("P95 BEFORE", right=True), Column("WAITING", right=True),
    ]  # fmt: skip
    cells = [
        [
            row.name,
            str(row.jobs),
            render.duration(row.p50_s),
            render.duration(row.p95_s),
            render.duration(older[row.name].p95_s if row.name in older else None),
            str(row.waiting),
        ]
        for row in rows
    ]
    return render.table(columns, cells)


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
