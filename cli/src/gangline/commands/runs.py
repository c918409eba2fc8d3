"""`gangline runs, metrics, compare`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gangline import render
from gangline.commands.jobs import JobId
from gangline.errors import CliError, ExitCode
from gangline.render import NONE, Column
from gangline.session import Session
from gangline_schemas.api.runs import Comparison, Curve, Run

MAX_COMPARED = 20
_CURVE = (8, 24)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def runs(
    session: Session,
    team: Annotated[str | None, typer.Option(help="Only this team.")] = None,
    name: Annotated[str | None, typer.Option(help="Only names that contain this.")] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="At most this many.")] = 50,
) -> None:
    """Runs in the history, newest first."""
    found = [*session.client.runs(team=team, name=name, limit=limit)]
    now = datetime.now(UTC)
    columns: list[Column[Run]] = [
        Column("RUN", lambda run: run.run_id, whole=True),
        Column("TEAM", lambda run: run.team, flexible=True),
        Column("STATE", lambda run: run.state),
        Column("GPUS", lambda run: str(run.gpus), right=True),
        Column("RESTARTS", lambda run: str(run.restarts), right=True),
        Column("GPU TIME", lambda run: render.duration(run.gpu_seconds), right=True),
        Column("AGE", lambda run: render.short_age(run.submitted_at, now), right=True),
    ]
    session.out.listing(found, columns, "no runs yet")


def metrics(
    session: Session,
    job_id: JobId,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="Only this metric; may be repeated.")
    ] = None,
    points: Annotated[int, typer.Option(min=2, max=5000, help="Points per curve.")] = 200,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Print each step as a line until the run ends.")
    ] = False,
) -> None:
    """A run's metrics: last value, extremes and curve."""
    if follow:
        _follow(session, job_id, name or ())
        return
    curves = session.client.curves(job_id, name or (), points=points)
    shown = [curve for curve in curves if curve.points]
    if missing := set(name or ()) - {curve.name for curve in shown}:
        _refuse(session, job_id, missing)
    columns = _metrics(_curve_room(shown))
    session.out.listing(shown, columns, f"{job_id} has reported no metrics yet", result=curves)


def _refuse(session: Session, run_id: str, missing: Iterable[str]) -> None:
    """Raise CliError that says which metrics there are."""
    known = sorted(curve.name for curve in session.client.curves(run_id, (), points=2))
    raise CliError(
        f"{run_id} has no metric {', '.join(sorted(missing))}",
        f"it has {', '.join(known)}" if known else "it has reported none yet",
        ExitCode.USAGE,
    )


def _curve_room(curves: Sequence[Curve]) -> int:
    """The width that curves may have, so that no name of a metric is cut: --name wants it whole."""
    others = _metrics(1)[:-1]
    widths = [max(map(len, [each.title, *map(each.cell, curves)])) for each in others]
    return max(_CURVE[0], min(_CURVE[1], render.WIDTH - sum(widths) - 2 * len(widths)))


def _follow(session: Session, run_id: str, names: Sequence[str]) -> None:
    try:
        for step in session.client.metrics(run_id, names, follow=True):
            values = "  ".join(f"{name} {render.number(v)}" for name, v in step.metrics.items())
            text = f"step {step.step}  {values}"
            session.out.line(step, render.shorten(render.plain(text), render.WIDTH))
    except KeyboardInterrupt:
        session.out.note("the run continues")


def _metrics(room: int) -> tuple[Column[Curve], ...]:
    return (
        Column("METRIC", lambda curve: curve.name, flexible=True),
        Column("STEP", lambda curve: str(curve.points[-1].step), right=True),
        Column("LAST", _last, right=True),
        Column("LOWEST", _lowest, right=True),
        Column("HIGHEST", _highest, right=True),
        Column("CURVE", lambda curve: render.sparkline([p.value for p in curve.points], room)),
    )


def _lowest(curve: Curve) -> str:
    return render.number(min(point.low for point in curve.points))


def _highest(curve: Curve) -> str:
    return render.number(max(point.high for point in curve.points))


def _last(curve: Curve) -> str:
    return render.number(curve.points[-1].value if curve.last is None else curve.last)


def compare(
    session: Session,
    run_ids: Annotated[list[str], typer.Argument(metavar="RUN RUN...", help="Two or more runs.")],
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Write a plot of the curves.")
    ] = None,
    metric: Annotated[str, typer.Option(help="The metric that --plot shows.")] = "loss",
) -> None:
    """Runs side by side: what differs in their configuration, and how they ended."""
    wanted = [*dict.fromkeys(run_ids)]
    if not 2 <= len(wanted) <= MAX_COMPARED:
        raise CliError(f"give 2 to {MAX_COMPARED} different runs", code=ExitCode.USAGE)
    found = session.client.compare(wanted, [metric], points=500 if plot else 2)
    session.out.show(found, comparison_text(found))
    if plot is not None:
        from gangline.plot import plot_curves

        names = {run.run_id: run.name for run in found.runs}
        plot_curves(found.curves, names, metric, plot)
        session.out.note(f"{metric} of {len(found.curves)} runs is drawn in {plot}")


def comparison_text(found: Comparison) -> str:
    """The comparison in 80 columns: runs by letter, then a row for each thing that differs."""
    ids = [run.run_id for run in found.runs]
    letters = _LETTERS[: len(ids)]
    lines = [f"{letter}  {run.run_id}" for letter, run in zip(letters, found.runs, strict=True)]
    columns: list[Column[str]] = [
        Column("", flexible=True),
        *(Column(letter, right=True) for letter in letters),
    ]
    rows = [
        ["state", *(run.state for run in found.runs)],
        ["gpus", *(str(run.gpus) for run in found.runs)],
        ["restarts", *(str(run.restarts) for run in found.runs)],
        ["gpu-seconds", *(render.number(run.gpu_seconds) for run in found.runs)],
    ]
    rows += [
        [name, *(render.number(by_run[run].value) if run in by_run else NONE for run in ids)]
        for name, by_run in found.metrics.items()
    ]
    lines += ["", render.table(columns, rows)]
    if found.differences:
        differing = [
            [item.field, *(_value(item.values.get(run)) for run in ids)]
            for item in found.differences
        ]
        columns = [Column("differs", flexible=True), *columns[1:]]
        lines += ["", render.table(columns, differing)]
    else:
        lines += ["", "their configurations are the same"]
    return "\n".join(lines)


def _value(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, float):
        return render.number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
