"""Utilization and queue over time, a line for each policy, distinct by colour and stroke."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gangline_simulator.ledger import PoolResult

ENDINGS = (".png", ".svg", ".pdf")
_POINTS = 400
_STROKES = ("-", "--", "-.", ":")


def draw(results: Mapping[str, Sequence[PoolResult]], path: Path) -> None:
    """Write the picture of each policy's pools. Raises OSError; the ending must be of ENDINGS."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    for index, (policy, pools) in enumerate(results.items()):
        hours, utilization, waiting = curves(pools)
        stroke = _STROKES[index % len(_STROKES)]
        above.plot(hours, [100 * value for value in utilization], stroke, label=policy)
        below.plot(hours, waiting, stroke, label=policy)
    above.set_ylabel("GPUs allocated, %")
    below.set_ylabel("jobs that wait")
    below.set_xlabel("hours since the first submission")
    for axes in (above, below):
        axes.grid(visible=True, alpha=0.3)
        axes.set_ylim(bottom=0)
    above.legend()
    figure.savefig(path)


def curves(pools: Sequence[PoolResult]) -> tuple[list[float], list[float], list[float]]:
    """Hours, and the means of GPUs allocated (0 to 1) and of jobs that wait, in equal intervals."""
    end_s = max((pool.samples[-1].at_s for pool in pools if pool.samples), default=0.0)
    gpus = sum(pool.gpus for pool in pools)
    step_s = end_s / _POINTS
    if step_s <= 0 or gpus <= 0:
        return [0.0], [0.0], [0.0]
    allocated, waiting = [0.0] * _POINTS, [0.0] * _POINTS
    for pool in pools:
        for sample, following in zip(pool.samples, pool.samples[1:], strict=False):
            _spread(allocated, sample.at_s, following.at_s, step_s, sample.allocated_gpus)
            _spread(waiting, sample.at_s, following.at_s, step_s, sample.waiting)
    hours = [(index + 0.5) * step_s / 3600.0 for index in range(_POINTS)]
    return hours, [value / gpus for value in allocated], waiting


def _spread(into: list[float], start_s: float, end_s: float, step_s: float, value: float) -> None:
    """Add `value` to the intervals between two moments, by the share that lies in each."""
    if value == 0 or end_s <= start_s:
        return
    at_s = start_s
    index = min(int(at_s / step_s), len(into) - 1)
    while at_s < end_s and index < len(into):
        until_s = min(end_s, (index + 1) * step_s)
        into[index] += value * max(0.0, until_s - at_s) / step_s
        at_s, index = max(at_s, until_s), index + 1
