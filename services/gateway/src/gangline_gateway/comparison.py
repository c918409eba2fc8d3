"""Compares runs: configuration, metrics and curves. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gangline_gateway.history import HistoryRun
from gangline_schemas.api.runs import (
    Comparison,
    Curve,
    Difference,
    Final,
    Overlay,
    OverlayCurve,
    Resources,
)

_SAME_BY_NATURE = frozenset({"name", "version"})


def compare(
    runs: Sequence[HistoryRun],
    metrics: dict[str, dict[str, Final]],
    curves: list[Curve],
    resources: dict[str, Resources] | None = None,
) -> Comparison:
    """Runs side by side: which fields of their configurations differ, and which are the same."""
    configurations = {run.run.run_id: flatten(json.loads(run.spec)) for run in runs}
    fields = sorted({field for flat in configurations.values() for field in flat})
    differences, same = [], {}
    for field in fields:
        texts = {run_id: flat.get(field, "null") for run_id, flat in configurations.items()}
        values = {run_id: json.loads(text) for run_id, text in texts.items()}
        if len(set(texts.values())) == 1:
            same[field] = values[runs[0].run.run_id]
        elif field not in _SAME_BY_NATURE:
            differences.append(Difference(field=field, values=values))
    return Comparison(
        runs=[run.run for run in runs],
        differences=differences,
        same={field: value for field, value in same.items() if value is not None},
        metrics=metrics,
        resources=resources or {},
        curves=curves,
    )


def overlay(curves: Sequence[Curve]) -> Overlay:
    """The curves as columns, rounded for a picture: half the bytes of exact values."""
    return Overlay(
        curves=[
            OverlayCurve(
                run_id=curve.run_id,
                name=curve.name,
                step=[point.step for point in curve.points],
                x=[point.x for point in curve.points],
                value=[
                    _rounded(point.value if point.smoothed is None else point.smoothed)
                    for point in curve.points
                ],
                low=[_rounded(point.low) for point in curve.points],
                high=[_rounded(point.high) for point in curve.points],
            )
            for curve in curves
        ]
    )


def _rounded(value: float) -> float:
    """Five significant digits."""
    return float(f"{value:.5g}")


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Dotted field names to JSON texts; lists are one value."""
    if not isinstance(value, Mapping):
        return {prefix: json.dumps(value, sort_keys=True)}
    found: dict[str, str] = {}
    for name, item in value.items():
        found |= flatten(item, f"{prefix}.{name}" if prefix else str(name))
    return found
