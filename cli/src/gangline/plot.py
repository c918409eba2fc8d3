"""Curves of several runs in one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gangline.errors import CliError, ExitCode
from gangline_schemas.api.runs import Curve

_LINES = ("-", "--", "-.", ":")


def plot_curves(curves: Sequence[Curve], names: Mapping[str, str], metric: str, path: Path) -> None:
    """Draw each run's curve, each with its own colour and stroke. Raises CliError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not any(curve.points for curve in curves):
        raise CliError(f"none of the runs has reported {metric}", "see: gangline metrics JOB")
    if path.suffix not in {".png", ".svg", ".pdf"}:
        raise CliError(f"{path}: name a .png, .svg or .pdf file", code=ExitCode.USAGE)
    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for index, curve in enumerate(curves):
        steps = [point.step for point in curve.points]
        name = names.get(curve.run_id, "")
        label = curve.run_id if curve.run_id.startswith(name) else f"{name} ({curve.run_id})"
        axes.plot(
            steps,
            [point.value for point in curve.points],
            _LINES[index % len(_LINES)],
            label=label,
        )
    axes.set_xlabel("step")
    axes.set_ylabel(metric)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from None
