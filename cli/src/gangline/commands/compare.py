"""`gangline compare`: runs side by side, as text, picture or page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gangline import render
from gangline.commands.compare_views import (
    RESOURCES,
    Row,
    View,
    parallel_rows,
    show_code,
    show_resources,
)
from gangline.errors import CliError, ExitCode
from gangline.render import NONE, Column
from gangline.session import Session
from gangline_schemas.api.runs import MAX_COMPARED, Axis, Comparison, Sampling

_POINTS = 500
_SIDE_BY_SIDE = 4
"""Runs of one table; more follow in further tables."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def compare(
    session: Session,
    run_ids: Annotated[list[str], typer.Argument(metavar="RUN", help="Two or more runs.")],
    *,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the curves: .png, .svg or .pdf.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write tables and curves as one page.")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="The curve to draw (loss); may be repeated.")
    ] = None,
    axis: Annotated[Axis, typer.Option(help="The x axis of the curves.")] = "step",
    smoothing: Annotated[
        float, typer.Option(min=0, max=0.999, help="Weight of the past in a moving average.")
    ] = 0.0,
    sampling: Annotated[
        Sampling, typer.Option(help="How curves are thinned: buckets, or single points (LTTB).")
    ] = "bucket",
    show: Annotated[
        View, typer.Option(help="Instead of the outcome: parallel axes, resources, code.")
    ] = "outcome",
) -> None:
    """Runs side by side: what differs in their configuration, and how they ended."""
    wanted = [*dict.fromkeys(run_ids)]
    if not 2 <= len(wanted) <= MAX_COMPARED:
        raise CliError(f"give 2 to {MAX_COMPARED} different runs", code=ExitCode.USAGE)
    if show == "code":
        show_code(session, wanted)
        return
    if show == "resources":
        show_resources(session, wanted)
        return
    if show == "parallel":
        axes = session.client.parallel(wanted)
        rows = parallel_rows(axes)
        session.out.show(axes, _side_by_side([run.run_id for run in axes.runs], [("", rows)]))
        return
    metrics = metric or ["loss"]
    points = _POINTS if png or html else 2
    found = session.client.compare(
        wanted, metrics, points, axis=axis, smoothing=smoothing, sampling=sampling
    )
    session.out.show(found, comparison_text(found))
    if png is not None:
        from gangline.plot import draw_comparison

        draw_comparison(found, metrics, axis, png)
        session.out.note(f"{', '.join(metrics)} of {len(wanted)} runs is drawn in {png}")
    if html is not None:
        from gangline.comparison_page import write_page

        write_page(found, metrics, axis, html, datetime.now(UTC))
        session.out.note(f"the comparison of {len(wanted)} runs is in {html}")


def letters(count: int) -> list[str]:
    """A, B ... Z, AA, AB ...: short names of runs."""
    one = [*_LETTERS]
    return (one + [first + second for first in one for second in one])[:count]


def comparison_text(found: Comparison) -> str:
    """The comparison in 80 columns: runs by letter, then a row for each thing that differs."""
    tables = [("", outcomes(found)), ("differs", differing(found))]
    return _side_by_side([run.run_id for run in found.runs], tables)


def _side_by_side(run_ids: Sequence[str], tables: Sequence[tuple[str, list[Row]]]) -> str:
    """Tables by their titles, with a column for each run."""
    names = letters(len(run_ids))
    lines = [f"{name:2} {run_id}" for name, run_id in zip(names, run_ids, strict=True)]
    for title, rows in tables:
        if not rows:
            lines += ["", "their configurations are the same"]
        for first in range(0, len(names) if rows else 0, _SIDE_BY_SIDE):
            part = slice(first, first + _SIDE_BY_SIDE)
            lines += ["", _table(title, names[part], [(label, row[part]) for label, row in rows])]
    return "\n".join(lines)


def _table(title: str, names: Sequence[str], rows: Sequence[Row]) -> str:
    """Values share what the labels leave of 80 columns, or half of them."""
    size = max(len(title), *(len(label) for label, _ in rows))
    room = (render.WIDTH - min(size, render.WIDTH // 2)) // len(names) - 2
    columns: list[Column[str]] = [
        Column(title, flexible=True),
        *(Column(name, right=True) for name in names),
    ]
    cut = [[label, *(render.shorten(cell, room) for cell in row)] for label, row in rows]
    return render.table(columns, cut)


def outcomes(found: Comparison) -> list[Row]:
    """How the runs ended and what they cost, then each metric: final, lowest, highest."""
    rows = [
        ("state", [run.state for run in found.runs]),
        ("gpus", [str(run.gpus) for run in found.runs]),
        ("restarts", [str(run.restarts) for run in found.runs]),
        ("gpu-hours", [render.number(run.gpu_seconds / 3600) for run in found.runs]),
    ]
    if any(run.cost is not None for run in found.runs):
        rows.append(("cost", [render.number(run.cost) for run in found.runs]))
    return [*rows, *_resource_rows(found), *_metric_rows(found)]


def _resource_rows(found: Comparison) -> Iterator[Row]:
    """Resources that the runs used, as far as any of them has it."""
    for label, field in RESOURCES:
        used = [getattr(found.resources.get(run.run_id), field, None) for run in found.runs]
        if any(value is not None for value in used):
            yield label, [render.number(value) for value in used]


def _metric_rows(found: Comparison) -> Iterator[Row]:
    for name, by_run in found.metrics.items():
        finals = [by_run.get(run.run_id) for run in found.runs]
        for label, values in (
            (name, [None if final is None else final.value for final in finals]),
            ("  lowest", [None if final is None else final.low for final in finals]),
            ("  highest", [None if final is None else final.high for final in finals]),
        ):
            yield label, [render.number(value) for value in values]


def differing(found: Comparison) -> list[Row]:
    """The fields of the configuration that are not the same in all runs."""
    return [
        (item.field, [_value(item.values.get(run.run_id)) for run in found.runs])
        for item in found.differences
    ]


def _value(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, float):
        return render.number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
