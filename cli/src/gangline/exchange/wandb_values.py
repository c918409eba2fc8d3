"""Values as W&B writes them: rows of a history as points, a configuration as parameters."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from typing import Any

from gangline.exchange.records import Point, SourceRun, as_text, flat

_STEP, _TIME = "_step", "_timestamp"
_OWN = ("_step", "_timestamp", "_runtime", "_wandb")
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def points_of(row: Mapping[str, Any], run: SourceRun) -> Iterator[Point]:
    """The numbers of one row; all else is counted in `run.left`."""
    step = _number(row.get(_STEP))
    if step is None or not math.isfinite(step):
        run.left["rows without _step"] += 1
        return
    at_ms = time_ms(row) or run.started_ms or 0
    for name, value in flat(_plain(row, run)).items():
        found = _number(value)
        if found is not None:
            yield Point(name, int(step), at_ms, found)
        elif value is not None and value != "":
            run.left["texts" if isinstance(value, str) else "lists"] += 1


def _plain(row: Mapping[str, Any], run: SourceRun) -> dict[str, Any]:
    """The user's values, without W&B's own columns; media are left out and counted."""
    found = {}
    for key, value in row.items():
        if key.startswith("_"):
            continue
        if isinstance(value, Mapping) and "_type" in value:
            run.left[f"values of the type {value['_type']}"] += 1
        else:
            found[key] = value
    return found


def time_ms(row: Mapping[str, Any]) -> int | None:
    """When a row was logged, as Unix time; None where it does not say so."""
    time_s = _number(row.get(_TIME))
    return None if time_s is None or not math.isfinite(time_s * 1000) else round(time_s * 1000)


def run_texts(
    config: Mapping[str, Any],
    summary: Mapping[str, Any],
    facts: Mapping[str, str],
    logged: Container[str],
) -> tuple[dict[str, str], dict[str, str]]:
    """Parameters, and tags of W&B's facts and of the summary, except metrics that were logged."""
    plain = {
        key: value["value"] if isinstance(value, dict) and "value" in value else value
        for key, value in config.items()
        if key not in _OWN and not key.startswith("_")
    }
    params = {key: as_text(value) for key, value in flat(plain).items()}
    tags = {f"wandb.{name}": text for name, text in facts.items()}
    for key, value in flat(summary).items():
        if not key.startswith("_") and key not in logged and isinstance(value, str | int | float):
            tags[f"wandb.summary.{key}"] = as_text(value)
    return params, tags


def _number(value: object) -> float | None:
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return _NUMBERS.get(value) if isinstance(value, str) else None
