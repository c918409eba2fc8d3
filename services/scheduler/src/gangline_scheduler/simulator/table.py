"""The figures of several policies side by side, in at most 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gangline_scheduler.simulator.measure import Measures

WIDTH = 80
_LABEL = 25
_CELL = 13
_PER_BLOCK = (WIDTH - _LABEL) // _CELL


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
    """A row for each figure, a column for each policy; more than fit go into further blocks."""
    blocks = [
        _block(measures[start : start + _PER_BLOCK])
        for start in range(0, len(measures), _PER_BLOCK)
    ]
    return "\n\n".join(blocks)


def _block(measures: Sequence[Measures]) -> str:
    rows = [["", *(m.policy.upper()[:_CELL] for m in measures)]]
    rows += [[label, *(cell(m) for m in measures)] for label, cell in _ROWS]
    widths = [max(len(row[index]) for row in rows) for index in range(1, len(measures) + 1)]
    return "\n".join(
        row[0].ljust(_LABEL)
        + "  ".join(cell.rjust(width) for cell, width in zip(row[1:], widths, strict=True)).rstrip()
        for row in rows
    )
