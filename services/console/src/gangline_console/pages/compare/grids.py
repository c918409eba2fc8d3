"""Tables of a comparison: values by run, as rows of fields or of runs. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gangline_console.formats import NONE, number
from gangline_console.pages.runs.columns import Finals, best, metric_names
from gangline_schemas.api.runs import Comparison, Difference, Run

RUNS_AS_COLUMNS = 6
"""With more runs than that, runs are the rows."""
_SHORT_HEX = 12


@dataclass(frozen=True)
class Cell:
    """One value. `other`: it is not that of the first run. `best`: of all runs."""

    text: str
    full: str = ""
    detail: str = ""
    other: bool = False
    best: bool = False


@dataclass(frozen=True)
class Grid:
    """Cells by row and column; `heads` are the columns' titles, `names` the rows'."""

    corner: str
    heads: list[str]
    names: list[str]
    rows: list[list[Cell]]

    @property
    def empty(self) -> bool:
        """Whether there is no field."""
        return not any(self.rows)


def grid(corner: str, runs: Sequence[Run], names: list[str], rows: list[list[Cell]]) -> Grid:
    """Rows of fields over columns of runs, or the other way round if there are many runs."""
    titles = [run.name or run.run_id for run in runs]
    if len(runs) <= RUNS_AS_COLUMNS:
        return Grid(corner, titles, names, rows)
    turned = [list(cells) for cells in zip(*rows, strict=True)] if rows else [[] for _ in runs]
    return Grid("Run", names, titles, turned)


def differences(found: Comparison) -> Grid:
    """The fields of the configuration that differ."""
    rows = [_difference(item, found.runs) for item in found.differences]
    names = [item.field for item in found.differences]
    return grid("Field", found.runs, names, rows)


def finals(found: Comparison) -> Grid:
    """Each metric at its last step, with its range over all steps."""
    names = metric_names(found.metrics)
    rows = [_metric(name, found.metrics, found.runs) for name in names]
    return grid("Metric", found.runs, names, rows)


def code(found: Comparison) -> Grid:
    """Inputs that pin a run: commit, diff, snapshot, image."""
    differ = {item.field: item.values for item in found.differences}

    def of(name: str) -> list[Cell]:
        values = differ.get(name) or {run.run_id: found.same.get(name) for run in found.runs}
        return _cells([_text(values.get(run.run_id)) for run in found.runs])

    rows = {
        "Commit": of("code_ref"),
        "Digest of the uncommitted diff": of("code_diff_digest"),
        "Data snapshot": of("data_snapshot"),
        "Image": of("image"),
    }
    shown = {name: cells for name, cells in rows.items() if any(cell.full for cell in cells)}
    return grid("Input", found.runs, [*shown], [*shown.values()])


def _difference(item: Difference, runs: Sequence[Run]) -> list[Cell]:
    return _cells([_text(item.values.get(run.run_id)) for run in runs])


def _cells(values: Sequence[str | None]) -> list[Cell]:
    return [
        Cell(
            text=NONE if value is None else _short(value),
            full=value or "",
            other=value != values[0],
        )
        for value in values
    ]


def _metric(name: str, metrics: Finals, runs: Sequence[Run]) -> list[Cell]:
    found = [metrics[name].get(run.run_id) for run in runs]
    top = best(name, (None if item is None else item.value for item in found))
    return [
        Cell(NONE)
        if item is None
        else Cell(
            text=number(item.value),
            full=repr(item.value),
            detail=f"{number(item.low)} to {number(item.high)}, step {number(item.step)}",
            best=top is not None and item.value == top,
        )
        for item in found
    ]


def _text(value: Any) -> str | None:
    """A value of a spec; texts without quotes."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True)


def _short(text: str) -> str:
    """Digests are cut: their beginnings differ."""
    digest = text.removeprefix("sha256:")
    hexadecimal = len(digest) in {40, 64} and all(sign in "0123456789abcdef" for sign in digest)
    return f"{digest[:_SHORT_HEX]}…" if hexadecimal else text
