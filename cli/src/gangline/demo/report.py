"""The demo's end: the comparison as text, the curves as a picture, and both as a page."""

from __future__ import annotations

import html
import io
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gangline.demo.outcome import Outcome
from gangline.demo.story import Story
from gangline.plot import plot_curves
from gangline_schemas.api.runs import Comparison

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Gangline demo</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: auto; padding: 1rem }}
pre {{ background: #f5f5f4; padding: 1rem; overflow-x: auto; font-size: 14px }}
img {{ max-width: 100% }}
</style>
<h1>One job's life, through a failure</h1>
<p>{summary}</p>
<h2>Loss of both runs</h2><img src="curves.png" alt="loss over steps of both runs">
<h2>Comparison</h2><pre>{comparison}</pre>
<h2>What was measured</h2><pre>{figures}</pre>
<h2>What was claimed</h2><pre>{checks}</pre>
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
    tables = [comparison_table(comparison), figures_table(outcome), checks_table(outcome)]
    for table in tables:
        console.print()
        console.print(table)
    texts = [html.escape(_as_text(table)) for table in tables]
    waiting = html.escape(outcome.waiting)
    page = _PAGE.format(
        summary=f"{outcome.first} lost a rank and resumed from its last committed checkpoint; "
        f"{outcome.second} waited for its whole gang: {waiting}.",
        comparison=texts[0],
        figures=texts[1],
        checks=texts[2],
    )
    (folder / "index.html").write_text(page, encoding="utf-8")


def write_figures(outcome: Outcome, console: Console) -> None:
    """Print the figures and the checks."""
    for table in (figures_table(outcome), checks_table(outcome)):
        console.print()
        console.print(table)


def comparison_table(comparison: Comparison) -> Table:
    """Config diff, final loss, restarts and GPU-seconds of the runs, a column each."""
    table = Table(box=None, pad_edge=False)
    table.add_column("comparison")
    for run in comparison.runs:
        table.add_column(run.run_id, overflow="fold")
    for difference in comparison.differences:
        if difference.field in {"name", "team", "code_diff"}:
            continue
        values = [str(difference.values.get(run.run_id, "-")) for run in comparison.runs]
        table.add_row(difference.field, *values)
    final = comparison.metrics.get("loss", {})
    losses = [final[run.run_id] for run in comparison.runs if run.run_id in final]
    table.add_row("final loss", *(f"{item.value:.3f}" for item in losses))
    table.add_row("restarts", *(str(run.restarts) for run in comparison.runs))
    table.add_row("GPU-seconds", *(f"{run.gpu_seconds:.1f}" for run in comparison.runs))
    return table


def figures_table(outcome: Outcome) -> Table:
    """The measured figures."""
    table = Table("measured", "", box=None, pad_edge=False)
    for name, value in outcome.figures.items():
        table.add_row(name, f"{value:.2f}" if value % 1 else f"{value:.0f}")
    return table


def checks_table(outcome: Outcome) -> Table:
    """The checks, and whether each passed."""
    table = Table("claim", "", box=None, pad_edge=False)
    for name, passed in outcome.checks.items():
        table.add_row(name, "yes" if passed else "NO")
    return table


def _as_text(table: Table) -> str:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(table)
    return console.export_text()
