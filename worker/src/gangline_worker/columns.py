"""What a rank reported, as the columns of one message."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from gangline_schemas.rank_protocol import Report

DROPPED_METRIC: Final = "report_dropped"
METRICS_LIMIT: Final = 1_000  # names a message; those beyond are left out

Entry = tuple[int, int, Mapping[str, float]]  # step, Unix ms, metrics


def to_columns(entries: Sequence[Entry], dropped: int = 0) -> Report:
    """Turn rows of (step, Unix ms, metrics) into one columnar message.

    A metric that a step did not report, or that is no finite number, is None there. `dropped` > 0
    is added to the last row as the metric `report_dropped`. Names beyond the limit are left out.
    """
    every_name = dict.fromkeys(name for _, _, metrics in entries for name in metrics)
    names = list(every_name)[: METRICS_LIMIT - 1]
    columns: dict[str, tuple[float | None, ...]] = {}
    for name in names:
        columns[name] = tuple(_finite(metrics.get(name)) for _, _, metrics in entries)
    if dropped:
        columns[DROPPED_METRIC] = (*(None for _ in entries[1:]), float(dropped))
    return Report(
        step=tuple(step for step, _, _ in entries),
        time_ms=tuple(time_ms for _, time_ms, _ in entries),
        metrics=columns,
    )


def _finite(value: float | None) -> float | None:
    found = number(value)
    return found if found is not None and math.isfinite(found) else None


def number(value: float | None) -> float | None:
    """A metric's value as a float; None for what is no number."""
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):  # a script's slip must not cost it its line to the agent
        return None
