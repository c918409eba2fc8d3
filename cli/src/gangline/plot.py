"""Curves of several runs in one picture."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gangline.errors import CliError, ExitCode
from gangline_schemas.api.runs import Axis, Comparison, Curve

_LINES = ("-", "--", "-.", ":")
_AXES: dict[Axis, str] = {"step": "step", "time": "seconds since the start", "tokens": "tokens"}


def plot_curves(curves: Sequence[Curve], names: Mapping[str, str], metric: str, path: Path) -> None:
    """Draw each run's curve, each with its own colour and stroke. Raises CliError."""
    _save(_figure(curves, names, [metric], "step"), path)


def draw_comparison(found: Comparison, metrics: Sequence[str], axis: Axis, path: Path) -> None:
    """Draw one diagram for each metric, with a curve of each run. Raises CliError."""
    _save(_figure(found.curves, _names(found), metrics, axis), path)


def svg_of(found: Comparison, metrics: Sequence[str], axis: Axis) -> str:
    """The same picture as an SVG element. Raises CliError."""
    text = io.StringIO()
    _figure(found.curves, _names(found), metrics, axis).savefig(
        text, format="svg", metadata={"Date": None}
    )
    return text.getvalue()[text.getvalue().index("<svg") :]


def _names(found: Comparison) -> dict[str, str]:
    return {run.run_id: run.name for run in found.runs}


def _figure(
    curves: Sequence[Curve], names: Mapping[str, str], metrics: Sequence[str], axis: Axis
) -> Any:
    from matplotlib.figure import Figure

    order = [*names]  # a run looks the same in all diagrams
    figure = Figure(figsize=(9, 5 * len(metrics)), dpi=120, layout="constrained")
    for place, metric in enumerate(metrics, start=1):
        shown = [curve for curve in curves if curve.name == metric and curve.points]
        if not shown:
            raise CliError(f"none of the runs has reported {metric}", "see: gangline metrics RUN")
        diagram = figure.add_subplot(len(metrics), 1, place)
        for curve in shown:
            _draw(diagram, curve, names.get(curve.run_id, ""), order.index(curve.run_id))
        diagram.set_xlabel(_AXES[axis])
        diagram.set_ylabel(metric)
        diagram.grid(visible=True, alpha=0.3)
        diagram.legend()
    return figure


def _draw(diagram: Any, curve: Curve, name: str, index: int) -> None:
    """A line, and a band between the lowest and highest values."""
    at = [point.x for point in curve.points]
    (line,) = diagram.plot(
        at,
        [point.value if point.smoothed is None else point.smoothed for point in curve.points],
        _LINES[index % len(_LINES)],
        color=f"C{index}",
        label=curve.run_id if curve.run_id.startswith(name) else f"{name} ({curve.run_id})",
    )
    diagram.fill_between(
        at,
        [point.low for point in curve.points],
        [point.high for point in curve.points],
        color=line.get_color(),
        alpha=0.15,
        linewidth=0,
    )


def _save(figure: Any, path: Path) -> None:
    if path.suffix not in {".png", ".svg", ".pdf"}:
        raise CliError(f"{path}: name a .png, .svg or .pdf file", code=ExitCode.USAGE)
    try:
        figure.savefig(path)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from None
