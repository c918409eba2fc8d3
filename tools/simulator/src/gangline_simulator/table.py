"""The figures of several policies side by side, in at most 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gangline_simulator.measure import Measures

WIDTH = 80
LABEL = 22
_GAP = "  "


def seconds(value: float | None) -> str:
    """A time of a cell."""
    return "-" if value is None else f"{value:,.2f}"


def percent(value: float) -> str:
    """A share of a cell."""
    return f"{value * 100:.1f} %"


_ROWS: tuple[tuple[str, Callable[[Measures], str]], ...] = (
    ("jobs", lambda m: f"{m.jobs:,}"),
    ("JCT average, s", lambda m: seconds(m.jct_avg_s)),
    ("JCT p50, s", lambda m: seconds(m.jct_p50_s)),
    ("JCT p99, s", lambda m: seconds(m.jct_p99_s)),
    ("JCT p99.9, s", lambda m: seconds(m.jct_p999_s)),
    ("queue average, s", lambda m: seconds(m.queue_avg_s)),
    ("queue p50, s", lambda m: seconds(m.queue_p50_s)),
    ("queue p99, s", lambda m: seconds(m.queue_p99_s)),
    ("queue p99.9, s", lambda m: seconds(m.queue_p999_s)),
    ("queue p95 > 32 GPUs, s", lambda m: seconds(m.large_queue_p95_s)),
    ("makespan, h", lambda m: f"{m.makespan_s / 3600:,.1f}"),
    ("utilization", lambda m: percent(m.utilization)),
    ("fragmentation", lambda m: percent(m.fragmentation)),
    ("preemptions", lambda m: f"{m.preemptions:,}"),
    ("GPU-hours lost", lambda m: f"{m.gpu_hours_lost:,.1f}"),
    ("fairness of teams", lambda m: f"{m.fairness:.3f}"),
)


def table(measures: Sequence[Measures]) -> str:
    """A row for each figure, a column for each policy; those that don't fit go into more blocks."""
    labels = [name for name, _ in _ROWS]
    columns = [[item.policy.upper(), *(cell(item) for _, cell in _ROWS)] for item in measures]
    return side_by_side(labels, columns)


def side_by_side(labels: Sequence[str], columns: Sequence[Sequence[str]]) -> str:
    """Columns, each with its title first, beside the labels of their rows, in blocks that fit."""
    blocks: list[list[Sequence[str]]] = []
    room = 0
    for column in columns:
        width = len(_GAP) + max(len(cell) for cell in column)
        if width > room:
            blocks.append([])
            room = WIDTH - LABEL
        blocks[-1].append(column)
        room -= width
    return "\n\n".join(_block(labels, block) for block in blocks)


def _block(labels: Sequence[str], columns: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in columns]
    lines = []
    for label, *cells in zip(("", *labels), *columns, strict=True):
        parts = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append(_GAP.join((label.ljust(LABEL), *parts)).rstrip())
    return "\n".join(lines)
