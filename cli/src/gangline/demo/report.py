"""The demo's end: the comparison as text, the curves as a picture, and both as a page."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gangline.demo.outcome import Outcome
from gangline.demo.story import Story
from gangline.page_style import STYLE, html_table
from gangline.plot import plot_curves
from gangline_schemas.api.runs import Comparison

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Gangline demo</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{style}</style>
<h1>One job's life, through a failure</h1>
<p>{summary}</p>
<section><h2>Loss of both runs</h2>
<img src="curves.png" alt="loss over steps of both runs"></section>
<section><h2>Comparison</h2>{comparison}</section>
<section><h2>What was measured</h2>{figures}</section>
<section><h2>What was claimed</h2>{checks}</section>
</html>
"""


def write_report(outcome: Story, folder: Path, console: Console) -> None:
    """Print the comparison and the figures; write curves.png and index.html into the folder."""
    comparison = outcome.comparison
    if comparison is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    names = {run.run_id: run.name for run in comparison.runs}
    loss = [curve for curve in comparison.curves if curve.name == "loss"]
    plot_curves(loss, names, "loss", folder / "curves.png")
    tables = _tables(outcome, comparison)
    _print(tables, console)
    texts = [html_table(table.heads, table.rows) for table in tables]
    waiting = html.escape(outcome.waiting)
    page = _PAGE.format(
        style=STYLE,
        summary=f"{outcome.first} lost a rank and resumed from its last committed checkpoint; "
        f"{outcome.second} waited for its whole gang: {waiting}.",
        comparison=texts[0],
        figures=texts[1],
        checks=texts[2],
    )
    (folder / "index.html").write_text(page, encoding="utf-8")


def write_figures(outcome: Outcome, console: Console) -> None:
    """Print the figures and the checks."""
    _print(_tables(outcome), console)


@dataclass(frozen=True)
class _Table:
    """A label and cells in each row."""

    heads: list[str]
    rows: list[tuple[str, list[str]]]


def _tables(outcome: Outcome, comparison: Comparison | None = None) -> list[_Table]:
    """The comparison of two runs if it is given, the measured figures, the checks."""
    figures = [
        (name, [f"{value:.2f}" if value % 1 else f"{value:.0f}"])
        for name, value in outcome.figures.items()
    ]
    checks = [(name, ["yes" if passed else "NO"]) for name, passed in outcome.checks.items()]
    measured = [_Table(["measured", ""], figures), _Table(["claim", ""], checks)]
    return measured if comparison is None else [_compared(comparison), *measured]


def _compared(comparison: Comparison) -> _Table:
    """Config diff, final loss, restarts and GPU-seconds of the runs, a column each."""
    runs = comparison.runs
    rows = [
        (item.field, [str(item.values.get(run.run_id, "-")) for run in runs])
        for item in comparison.differences
        if item.field not in {"name", "team", "code_diff"}
    ]
    final = comparison.metrics.get("loss", {})
    losses = [final.get(run.run_id) for run in runs]
    rows += [
        ("final loss", ["-" if item is None else f"{item.value:.3f}" for item in losses]),
        ("restarts", [str(run.restarts) for run in runs]),
        ("GPU-seconds", [f"{run.gpu_seconds:.1f}" for run in runs]),
    ]
    return _Table(["comparison", *(run.run_id for run in runs)], rows)


def _print(tables: list[_Table], console: Console) -> None:
    for found in tables:
        table = Table(box=None, pad_edge=False)
        for at, head in enumerate(found.heads):
            table.add_column(head, overflow="fold" if at else "ellipsis")
        for label, cells in found.rows:
            table.add_row(label, *cells)
        console.print()
        console.print(table)
