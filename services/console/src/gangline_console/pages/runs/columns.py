"""Columns of tables over runs: attributes, parameters, metrics and tags, as REST names them. Pure.

A column's key is its name in the tracker's filter language, without quotes: `gpu_hours`,
`params.lr`, `metrics.loss`, `tags.stage`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from gangline_console.ordering import Ways
from gangline_schemas.api.runs import Final, Run

Finals = Mapping[str, Mapping[str, Final]]
"""Final metrics by name, then by run."""
Value = str | float | datetime | None
Better = Literal["lowest", "highest", ""]
Kind = Literal["text", "number", "time", "duration", "gpu_hours", "state"]

ATTRIBUTES: dict[str, tuple[str, Kind]] = {
    "state": ("State", "state"),
    "team": ("Team", "text"),
    "project": ("Project", "text"),
    "user": ("User", "text"),
    "gpus": ("GPUs", "number"),
    "gpu_model": ("GPU", "text"),
    "gpu_hours": ("GPU time", "gpu_hours"),
    "cost": ("Cost", "number"),
    "hours": ("Duration", "duration"),
    "restarts": ("Restarts", "number"),
    "attempts": ("Attempts", "number"),
    "priority": ("Priority", "number"),
    "submitted_at": ("Submitted", "time"),
    "started_at": ("Started", "time"),
    "ended_at": ("Ended", "time"),
    "strategy": ("Strategy", "text"),
    "code_ref": ("Commit", "text"),
    "data_snapshot": ("Data snapshot", "text"),
    "reason": ("Reason", "text"),
}
"""Title and kind by key."""
_GROUPS = {"params": "param", "metrics": "metric", "tags": "tag"}
_LOWER = ("loss", "err", "perplexity", "ppl", "bpb", "mse", "mae", "nll", "latency", "wer")
_HIGHER = (
    "acc", "auc", "f1", "bleu", "rouge", "score", "reward", "precision", "recall", "iou", "mfu",
    "throughput", "tokens_per_s", "win_rate", "pass",
)  # fmt: skip
_OF_THE_LOOP = re.compile(r"checkpoint_\w+|(step|busy|data_wait)_s|mfu_peak_measured")
FEW_PARAMS, FEW_METRICS = 4, 3


@dataclass(frozen=True)
class Column:
    """One column. `order`: its key for `order_by`; empty: REST cannot order by it."""

    key: str
    title: str
    group: str
    kind: Kind
    order: str
    better: Better = ""
    """Of a metric, by its name."""

    @property
    def name(self) -> str:
        """The key without its group."""
        return self.key.partition(".")[2] if self.group else self.key

    def value(self, run: Run, metrics: Finals) -> Value:
        """A run's value; None: it has none."""
        if self.group == "param":
            return run.hyperparameters.get(self.name)
        if self.group == "tag":
            return run.tags.get(self.name)
        if self.group == "metric":
            final = metrics.get(self.name, {}).get(run.run_id)
            return None if final is None else final.value
        return attribute(run, self.key)

    @property
    def ways(self) -> Ways:
        """The orders of clicks on its head: the best values first, then the last."""
        if not self.order:
            return {}
        rises: Ways = {self.order: "ascending"}
        falls: Ways = {f"{self.order} DESC": "descending"}
        first = self.better == "lowest" or self.kind in {"text", "state"}
        return {**rises, **falls} if first else {**falls, **rises}


def column(key: str) -> Column | None:
    """The column of a key; None if the key is unknown."""
    if key in ATTRIBUTES:
        title, kind = ATTRIBUTES[key]
        return Column(key, title, "", kind, key)
    before, _, name = key.partition(".")
    if before not in _GROUPS or not name:
        return None
    group = _GROUPS[before]
    order = "" if "`" in name else f"{before}.`{name}`"
    if group == "metric":
        return Column(key, name, group, "number", order, better(name))
    return Column(key, name, group, "text", order)


def better(name: str) -> Better:
    """Which values of a metric are good ones; empty where its name does not say it."""
    words = name.lower()
    if any(word in words for word in _LOWER):
        return "lowest"
    return "highest" if any(word in words for word in _HIGHER) else ""


def metric_names(metrics: Finals) -> list[str]:
    """Names of metrics: losses first; what the trainer reports of itself last."""
    return sorted(metrics, key=lambda name: (_rank(name), name))


def _rank(name: str) -> int:
    """As `metricRank` of format.js."""
    return 0 if "loss" in name.lower() else 2 if _OF_THE_LOOP.fullmatch(name) else 1


def usual(runs: Sequence[Run], metrics: Finals) -> list[str]:
    """Keys of the columns of one who chose none: what says most about these runs."""
    values = {
        name: len({found for run in runs if (found := run.hyperparameters.get(name)) is not None})
        for name in param_names(runs)
    }
    shown = [name for name in metric_names(metrics) if _rank(name) < 2]
    # Of another value in each run are seeds and names of files.
    differ = sorted(
        (name for name, count in values.items() if count > 1),
        key=lambda name: values[name] == len(runs) > 2,
    )
    return [
        "state",
        *(f"metrics.{name}" for name in shown[:FEW_METRICS]),
        *(f"params.{name}" for name in differ[:FEW_PARAMS]),
        "gpus",
        "gpu_hours",
        *(["cost"] if any(run.cost is not None for run in runs) else []),
        "restarts",
        "user",
        "submitted_at",
    ]


def param_names(runs: Iterable[Run]) -> list[str]:
    """Names of the parameters of the runs, sorted."""
    return sorted({name for run in runs for name in run.hyperparameters})


def tag_names(runs: Iterable[Run]) -> list[str]:
    """Names of the tags of the runs, sorted."""
    return sorted({name for run in runs for name in run.tags})


def best(name: str, values: Iterable[float | None]) -> float | None:
    """The best of a metric's values; None of one value, or where the name does not say it."""
    found = [value for value in values if value is not None and math.isfinite(value)]
    way = better(name)
    return None if len(found) < 2 or not way else min(found) if way == "lowest" else max(found)


def bests(shown: Iterable[Column], metrics: Finals) -> dict[str, float | None]:
    """The best value in each column, by key."""
    return {
        item.key: best(item.name, (final.value for final in metrics.get(item.name, {}).values()))
        if item.group == "metric"
        else None
        for item in shown
    }


def plain(value: Value) -> str:
    """A value in full, for CSV: times in ISO 8601. A text cannot be taken for a formula."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float | int):
        return repr(value)
    try:
        float(value)
    except ValueError:
        return f"'{value}" if value[:1] in {"=", "+", "-", "@", "\t", "\r"} else value
    return value


def attribute(run: Run, key: str) -> Value:
    """A run's value of an attribute; None: it has none."""
    if key == "gpu_hours":
        return run.gpu_seconds / 3600
    if key == "hours":
        if run.started_at is None or run.ended_at is None:
            return None
        return (run.ended_at - run.started_at).total_seconds() / 3600
    found = getattr(run, "attempt" if key == "attempts" else key)
    return None if found is None or found == "" else found
