"""Reports as HTML pages: text and a style sheet, without scripts or resources to fetch.

Every value is escaped where it enters the page, in `_cell`; titles are constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape

from gangline_schemas.api.reports import ClusterUse, UtilizationReport, Waits, Week, WeeklyReport

NONE = "–"  # noqa: RUF001 - people read it as "no value"
_STYLE = """
:root {
  color-scheme: light dark; --bg: #f7f8fa; --surface: #fff; --line: #dfe3ea;
  --text: #1a1f29; --dim: #586174;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #0f1218; --surface: #161a22; --line: #2a303c; --text: #e6e9ef; --dim: #9aa4b6;
  }
}
body {
  font: 14px/20px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; margin: 0 auto;
  max-width: 64rem; padding: 24px 16px 48px; background: var(--bg); color: var(--text);
}
h1 { font-size: 20px; line-height: 28px; margin: 0 }
h2 { font-size: 15px; margin: 24px 0 8px }
p { margin: 4px 0 16px; color: var(--dim) }
div {
  padding: 8px 16px; background: var(--surface); border: 1px solid var(--line);
  border-radius: 6px; overflow-x: auto;
}
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 24rem }
th, td { border-bottom: 1px solid var(--line); padding: 4px 12px; text-align: right }
tr:last-child td { border-bottom: 0 }
th { color: var(--dim); font-weight: 600; vertical-align: bottom }
th:first-child, td:first-child { text-align: left }
"""


def utilization_page(report: UtilizationReport) -> str:
    """The report `utilization` as a page."""
    teams = [
        [
            team.team,
            str(team.gpus_allocated),
            _count(team.gpu_limit),
            _count(team.gpu_guarantee),
            _number(team.gpu_hours_allocated),
            _percent(team.utilization),
            _percent(team.gpu_utilization),
            _percent(team.mfu),
            str(team.gpus_pending),
            _number(team.gpu_hours_pending),
        ]
        for team in report.teams
    ]
    head = (
        "Team", "GPUs allocated", "Limit", "Guarantee", "GPU-hours", "Of its share", "GPUs busy",
        "MFU",
        "GPUs waited for", "GPU-hours waited",
    )  # fmt: skip
    return _page(
        "Utilization",
        report.since,
        report.until,
        [
            ("Cluster", "", _table(("", "Value"), _cluster(report.cluster))),
            (
                "Teams",
                "Of its share: GPU-hours allocated of the guarantee (without one, the limit).",
                _table(head, teams),
            ),
        ],
    )


def weekly_page(report: WeeklyReport) -> str:
    """The report `weekly` as a page."""
    this, before = report.this, report.before
    compared = [
        [name, now, then]
        for (name, now), (_, then) in zip(_figures(this), _figures(before), strict=True)
    ]
    waits = [
        (title, "From submission to the first gang.", _waits(by, rows, older))
        for title, by, rows, older in (
            ("Queue wait by GPUs", "GPUs", this.wait_by_gpus, before.wait_by_gpus),
            ("Queue wait by priority", "Priority", this.wait_by_priority, before.wait_by_priority),
        )
    ]
    unused = [
        [row.team, str(row.gpu_guarantee), _number(row.gpus_allocated_mean), _percent(row.used)]
        for row in this.unused_quota
    ]
    low = [
        [row.job_id, row.team, _percent(row.mfu), _number(row.gpu_hours)] for row in this.low_mfu
    ]
    return _page(
        f"Week {report.week}" if report.week else "The last 7 days",
        this.since,
        this.until,
        [
            ("Figures", "", _table(("", "This week", "Before"), compared)),
            *waits,
            (
                "Teams that leave quota unused",
                "Less than half of the guarantee was allocated on average.",
                _table(("Team", "Guarantee", "Mean GPUs allocated", "Used"), unused),
            ),
            (
                "Jobs with low MFU",
                "Below 30 % on average; those with the most GPU-hours first.",
                _table(("Job", "Team", "MFU", "GPU-hours"), low),
            ),
        ],
    )


def _cluster(use: ClusterUse) -> list[list[str]]:
    return [
        ["GPUs now", str(use.gpus_total)],
        ["GPUs allocated now", str(use.gpus_allocated)],
        ["GPUs, mean", _number(use.gpus_total_mean)],
        ["GPUs allocated, mean", _number(use.gpus_allocated_mean)],
        ["GPU-hours", _number(use.gpu_hours_total)],
        ["GPU-hours allocated", _number(use.gpu_hours_allocated)],
        ["Utilization", _percent(use.utilization)],
        ["GPUs busy", _percent(use.gpu_utilization)],
    ]


def _figures(week: Week) -> list[tuple[str, str]]:
    ended = f"{week.jobs_succeeded} / {week.jobs_failed} / {week.jobs_cancelled}"
    return [
        ("GPU-hours", _number(week.cluster.gpu_hours_total)),
        ("GPU-hours allocated", _number(week.cluster.gpu_hours_allocated)),
        ("Utilization", _percent(week.cluster.utilization)),
        ("GPUs busy", _percent(week.cluster.gpu_utilization)),
        ("MFU", _percent(week.mfu)),
        ("GPU-hours waited for", _number(week.gpu_hours_pending)),
        ("Jobs submitted", str(week.jobs_submitted)),
        ("Jobs succeeded / failed / cancelled", ended),
        ("Completion rate", _percent(week.completion_rate)),
        ("Queue wait, P50", _duration(week.wait.p50_s)),
        ("Queue wait, P95", _duration(week.wait.p95_s)),
        ("Gangs that failed", str(week.failures)),
        ("Mean time to running again", _duration(week.mttr_s)),
        ("Preemptions", str(week.preemptions)),
        ("GPU-hours that they cost", _number(week.preemption_gpu_hours)),
    ]


def _waits(by: str, rows: Sequence[Waits], before: Sequence[Waits]) -> str:
    head = (by, "Jobs", "P50", "P95", "P95 before", "Still waiting")
    cells = [
        [
            row.name,
            str(row.jobs),
            _duration(row.p50_s),
            _duration(row.p95_s),
            _duration(old.p95_s),
            str(row.waiting),
        ]
        for row, old in zip(rows, before, strict=True)
    ]
    return _table(head, cells)


def _page(
    title: str, since: datetime, until: datetime, sections: Sequence[tuple[str, str, str]]
) -> str:
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)} - Gangline</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
        f"<h1>{escape(title)}</h1>\n<p>{_moment(since)} to {_moment(until)} UTC</p>",
    ]
    for heading, note, table in sections:
        parts.append(f"<h2>{escape(heading)}</h2>")
        if note:
            parts.append(f"<p>{escape(note)}</p>")
        parts.append(table)
    return "\n".join([*parts, "</body>\n</html>\n"])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "<p>None.</p>"
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    lines = [f"<tr>{''.join(_cell(text) for text in row)}</tr>" for row in rows]
    return "\n".join(
        [f"<div><table>\n<thead><tr>{titles}</tr></thead>\n<tbody>", *lines, "</tbody>",
         "</table></div>"]
    )  # fmt: skip


def _cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"


def _moment(value: datetime) -> str:
    return f"{value:%Y-%m-%d %H:%M}"


def _count(value: int | None) -> str:
    return NONE if value is None else str(value)


def _number(value: float) -> str:
    """Values below 10 get a second digit, as the figures of a small cluster are small."""
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{share * 100:.1f} %"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
