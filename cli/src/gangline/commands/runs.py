"""`gangline runs, metrics, tag`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from gangline import render
from gangline.commands.list_options import Limit
from gangline.errors import CliError, ExitCode
from gangline.render import Column
from gangline.session import Session
from gangline_schemas.api.runs import Curve, Run, RunKind
from gangline_schemas.system_metrics import is_system, node_and_kind

_CURVE = (8, 24)
RunId = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A job's id, as `runs` shows it, or an MLflow run's."),
]
JobRunId = Annotated[
    str, typer.Argument(metavar="RUN", help="The run of a job: its id, as `runs` shows it.")
]


def runs(
    session: Session,
    team: Annotated[str | None, typer.Option(help="Only this team.")] = None,
    name: Annotated[str | None, typer.Option(help="Only names that contain this.")] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="FILTER", help="As \"params.lr = '0.1' and metrics.loss < 2\"."),
    ] = None,
    order_by: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help='As "metrics.loss", "gpu_hours DESC"; repeatable.'),
    ] = None,
    kind: Annotated[
        RunKind | None,
        typer.Option(help="all: also runs of MLflow clients, the default with a filter."),
    ] = None,
    limit: Limit = 50,
) -> None:
    """Runs of history, newest first or in the order of --order-by."""
    asked = session.client.runs(
        team=team, name=name, where=where, order_by=order_by or (), kind=kind, limit=limit
    )
    found = [*asked]
    now = datetime.now(UTC)
    costs = [Column[Run]("COST", lambda run: render.number(run.cost), right=True)]
    columns: list[Column[Run]] = [
        Column("RUN", lambda run: run.run_id, whole=True),
        Column("TEAM", lambda run: run.team, flexible=True),
        Column("STATE", lambda run: run.state),
        Column("GPUS", lambda run: str(run.gpus), right=True),
        Column("RESTARTS", lambda run: str(run.restarts), right=True),
        Column("GPU TIME", lambda run: render.duration(run.gpu_seconds), right=True),
        *(costs if any(run.cost is not None for run in found) else []),
        Column("AGE", lambda run: render.short_age(run.submitted_at, now), right=True),
    ]
    session.out.listing(found, columns, "no such runs" if where else "no runs yet")


def metrics(
    session: Session,
    run_id: RunId,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="Only this metric; may be repeated.")
    ] = None,
    points: Annotated[int, typer.Option(min=2, max=5000, help="Points per curve.")] = 200,
    system: Annotated[
        bool, typer.Option("--system", help="CPU, memory, disk, network and GPUs of its nodes.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Print each step as a line until the run ends.")
    ] = False,
) -> None:
    """A run's metrics: last value, extremes and curve."""
    if follow:
        _follow(session, run_id, name or ())
        return
    curves = session.client.curves(run_id, name or (), points=points, system=system)
    shown = [curve for curve in curves if curve.points]
    if missing := set(name or ()) - {curve.name for curve in shown}:
        _refuse(session, run_id, missing, system)
    if shown and all(is_system(curve.name) for curve in shown):
        columns = (*_SYSTEM, *_metrics(_curve_room(shown, _SYSTEM))[2:])
    else:
        columns = _metrics(_curve_room(shown))
    empty = f"{run_id} has reported no metrics yet"
    if system:
        empty = f"{run_id} has no system metrics; its nodes take them every 30 s while it runs"
    session.out.listing(shown, columns, empty, result=curves)


def tag(
    session: Session,
    run_id: JobRunId,
    tags: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE...", help="Tags; NAME= removes one.")
    ],
) -> None:
    """Set tags of a run, also after its end; find it by them with runs --where."""
    wanted: dict[str, str | None] = {}
    for text in tags:
        name, given, value = text.partition("=")
        if not name or not given:
            raise CliError(f"{text!r} is no tag; write NAME=VALUE", code=ExitCode.USAGE)
        wanted[name] = value or None
    done = session.client.tag(run_id, wanted)
    parts = [
        f"{what}: {', '.join(names)}"
        for what, names in (
            ("set", sorted(name for name, value in wanted.items() if value is not None)),
            ("removed", sorted(name for name, value in wanted.items() if value is None)),
        )
        if names
    ]
    session.out.show(done, f"tags of {run_id} {'; '.join(parts)}")


def _refuse(session: Session, run_id: str, missing: Iterable[str], system: bool) -> None:
    """Raise CliError that says which metrics there are."""
    curves = session.client.curves(run_id, (), points=2, system=system)
    known = sorted(curve.name for curve in curves)
    raise CliError(
        f"{run_id} has no metric {', '.join(sorted(missing))}",
        f"it has {', '.join(known)}" if known else "it has reported none yet",
        ExitCode.USAGE,
    )


def _curve_room(curves: Sequence[Curve], first: Sequence[Column[Curve]] = ()) -> int:
    """The width that curves may have, so that no name of a metric is cut: --name wants it whole.

    `first`: columns instead of those of the name and the step.
    """
    others = [*first, *_metrics(1)[2:-1]] if first else [*_metrics(1)[:-1]]
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


_SYSTEM: tuple[Column[Curve], ...] = (
    Column("NODE", lambda curve: node_and_kind(curve.name)[0], flexible=True),
    Column("METRIC", lambda curve: node_and_kind(curve.name)[1]),
)


def _lowest(curve: Curve) -> str:
    return render.number(min(point.low for point in curve.points))


def _highest(curve: Curve) -> str:
    return render.number(max(point.high for point in curve.points))


def _last(curve: Curve) -> str:
    return render.number(curve.points[-1].value)
