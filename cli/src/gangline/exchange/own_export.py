"""Our own export: the files that `gangline export` writes, read run by run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from gangline.exchange.export import METRICS, PARAMS, RUNS, TAGS, schemas
from gangline.exchange.parquet import pyarrow
from gangline.exchange.records import Point, SourceError, SourceRun

_TIMES = ("submitted_at", "started_at", "ended_at")
_RUN = ("run_id", "team", "name", "project", "state", *_TIMES)
_TEXT = ("run_id", "name", "value")
_POINTS = ("run_id", "name", "step", "time", "value")
_STATES = {"succeeded": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}
_VALUES = (ValueError, OverflowError)
"""Arrow raises these for texts and times that Python cannot have."""
_MLFLOW = frozenset({"FINISHED", "FAILED", "KILLED", "RUNNING", "SCHEDULED"})


class OwnExport:
    """A directory with runs.parquet, metrics.parquet, params.parquet and tags.parquet."""

    kind = "Gangline export"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._arrow, self._parquet = pyarrow()

    def runs(self) -> Iterator[SourceRun | SourceError]:
        """The runs in the order of the file."""
        try:
            rows = [row for row in self._table(RUNS, _RUN).to_pylist() if row["run_id"]]
            params, tags = (self._texts(name) for name in (PARAMS, TAGS))
            file = self._parquet.ParquetFile(self._path / METRICS)
            if absent := {*_POINTS} - {*file.schema_arrow.names}:
                raise KeyError(f"{METRICS} has no column {min(absent)}")
            points = _Points(file, self._schema(METRICS, _POINTS))
        except (OSError, self._arrow.ArrowException, KeyError, *_VALUES) as error:
            yield SourceError(self._path, f"no readable export: {error}")
            return
        for row in rows:
            run_id = row["run_id"]
            yield SourceRun(
                f"gangline/{row['team']}/{run_id}",
                row["name"] or run_id,
                partial(self._points, run_id, points),
                project=row["project"] or "",
                state=row["state"]
                if row["state"] in _MLFLOW
                else _STATES.get(row["state"], "RUNNING"),
                started_ms=_ms(row["started_at"] or row["submitted_at"]),
                ended_ms=_ms(row["ended_at"]),
                params=params.get(run_id, {}),
                tags=tags.get(run_id, {}),
            )

    def _table(self, name: str, columns: Sequence[str]) -> Any:
        """These columns, with the types of an export: other programs may save it with others."""
        table = self._parquet.read_table(self._path / name).select(columns)
        return table.cast(self._schema(name, columns))

    def _schema(self, name: str, columns: Sequence[str]) -> Any:
        whole = schemas(self._arrow)[name]
        return self._arrow.schema([whole.field(column) for column in columns])

    def _texts(self, name: str) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for row in self._table(name, _TEXT).drop_null().to_pylist():
            found.setdefault(row["run_id"], {})[row["name"]] = row["value"]
        return found

    def _points(self, run_id: str, points: _Points, run: SourceRun) -> Iterator[Point]:
        try:
            yield from points.of(run_id)
        except (OSError, self._arrow.ArrowException, *_VALUES) as error:
            run.troubles.append(f"{self._path / METRICS}: {error}")


@dataclass
class _Points:
    """Points by run. One row group is kept, as small runs share one.

    Ids have no order, so the range of ids in a group does not tell whether it has a run's points.
    """

    file: Any
    schema: Any
    _group: int = -1
    _rows: Any = None
    _groups: dict[bytes, list[int]] | None = None

    def of(self, run_id: str) -> Iterator[Point]:
        from pyarrow import compute

        for group in self._groups_of().get(run_id.encode(), ()):
            if group != self._group:
                self._group, self._rows = group, self._read(group)
            rows = self._rows.filter(compute.equal(self._rows["run_id"], run_id))
            for batch in rows.to_batches(max_chunksize=10_000):
                names, steps, times, values = (
                    batch.column(name) for name in ("name", "step", "time", "value")
                )
                yield from map(
                    Point,
                    names.to_pylist(),
                    steps.to_pylist(),
                    times.cast("int64").to_pylist(),
                    values.to_pylist(),
                )

    def _groups_of(self) -> dict[bytes, list[int]]:
        """The row groups with points of each run. As bytes: an id of a damaged file may be torn."""
        from pyarrow import binary, compute

        if self._groups is None:
            found: dict[bytes, list[int]] = {}
            for group in range(self.file.num_row_groups):
                ids = self.file.read_row_group(group, columns=["run_id"])["run_id"]
                texts = ids.cast(self.schema.field("run_id").type)
                for run_id in compute.unique(texts.cast(binary())).to_pylist():
                    found.setdefault(run_id, []).append(group)
            self._groups = found
        return self._groups

    def _read(self, group: int) -> Any:
        """Rows with the types of an export; pandas saves NaN as null."""
        from pyarrow import compute

        rows = self.file.read_row_group(group, columns=[*_POINTS]).select(_POINTS)
        rows = rows.cast(self.schema)
        values = compute.fill_null(rows["value"], float("nan"))
        return rows.set_column(rows.schema.get_field_index("value"), "value", values)


def _ms(value: datetime | None) -> int | None:
    return None if value is None else round(value.timestamp() * 1000)
