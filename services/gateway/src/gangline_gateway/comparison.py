"""What differs between runs. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gangline_gateway.history import FinalMetric, RunRow

_SAME_BY_NATURE = frozenset({"name", "version"})


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of the configuration; `values` are JSON texts by run, None where it is unset."""

    field: str
    values: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs side by side. `metrics[name][run_id]` is the value at the last step."""

    runs: list[RunRow]
    differences: list[Difference]
    metrics: dict[str, dict[str, FinalMetric]]


def compare(runs: Sequence[RunRow], finals: Sequence[FinalMetric]) -> Comparison:
    """The configuration's fields that are not the same in all runs, and the final metrics."""
    configurations = {run.job_id: flatten(json.loads(run.spec)) for run in runs}
    fields = sorted({field for flat in configurations.values() for field in flat})
    differences = []
    for field in fields:
        values = {job: flat.get(field) for job, flat in configurations.items()}
        if len(set(values.values())) > 1 and field not in _SAME_BY_NATURE:
            differences.append(Difference(field, values))
    metrics: dict[str, dict[str, FinalMetric]] = {}
    for final in finals:
        metrics.setdefault(final.name, {})[final.run_id] = final
    return Comparison(list(runs), differences, metrics)


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Dotted field names to JSON texts; lists are one value."""
    if not isinstance(value, Mapping):
        return {prefix: json.dumps(value, sort_keys=True)}
    found: dict[str, str] = {}
    for name, item in value.items():
        found |= flatten(item, f"{prefix}.{name}" if prefix else str(name))
    return found
