"""The figures of several policies side by side, in at most 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gangline_scheduler.simulator.measure import Measures

WIDTH = 80
_LABEL = 22
_GAP = "  "


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _percent(value: float) -> str:
    return f"{value * 100:.1f} %"


_ROWS: tuple[tuple[str, Callable[[Measures], str]], ...] = (
    ("jobs", lambda m: f"{m.jobs:,}"),
    ("JCT average, s", lambda m: _seconds(m.jct_avg_s)),
    ("JCT p50, s", lambda m: _seconds(m.jct_p50_s)),
    ("JCT p99, s", lambda m: _seconds(m.jct_p99_s)),
    ("JCT p99.9, s", lambda m: _seconds(m.jct_p999_s)),
    ("queue average, s", lambda m: _seconds(m.queue_avg_s)),
    ("queue p50, s", lambda m: _seconds(m.queue_p50_s)),
    ("queue p99, s", lambda m: _seconds(m.queue_p99_s)),
    ("queue p99.9, s", lambda m: _seconds(m.queue_p999_s)),
    ("queue p95 > 32 GPUs, s", lambda m: _seconds(m.large_queue_p95_s)),
    ("makespan, h", lambda m: f"{m.makespan_s / 3600:,.1f}"),
    ("utilization", lambda m: _percent(m.utilization)),
    ("fragmentation", lambda m: _percent(m.fragmentation)),
    ("preemptions", lambda m: f"{m.preemptions:,}"),
    ("GPU-hours lost", lambda m: f"{m.gpu_hours_lost:,.1f}"),
    ("fairness of teams", lambda m: f"{m.fairness:.3f}"),
)


def table(measures: Sequence[Measures]) -> str:
    """A row for each figure, a column for each policy; those that don't fit go into more blocks."""
    blocks: list[list[list[str]]] = []
    room = 0
    for column in (_column(item) for item in measures):
        width = len(_GAP) + max(len(cell) for cell in column)
        if width > room:
            blocks.append([])
            room = WIDTH - _LABEL
        blocks[-1].append(column)
        room -= width
    return "\n\n".join(_block(columns) for columns in blocks)


def _column(item: Measures) -> list[str]:
    return [item.policy.upper(), *(cell(item) for _, cell in _ROWS)]


def _block(columns: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in columns]
    lines = []
    for label, *cells in zip(("", *(name for name, _ in _ROWS)), *columns, strict=True):
        parts = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append(_GAP.join((label.ljust(_LABEL), *parts)))
    return "\n".join(lines)
