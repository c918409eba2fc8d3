"""MLflow's database in a file of SQLite, opened read-only."""

# ruff: noqa: S608 - SQL is built from constants; values are parameters.
from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from gangline.exchange.records import Point, SourceError, SourceRun

MOST_ENTRIES = 100_000
"""Of a run's folder of artifacts: more are not counted."""
MAGIC = b"SQLite format 3\0"
_RUNS = (
    "SELECT r.run_uuid, CAST(r.name AS TEXT), CAST(r.status AS TEXT), "
    "CAST(r.start_time AS INTEGER), CAST(r.end_time AS INTEGER), "
    "CAST(e.name AS TEXT), CAST(r.artifact_uri AS TEXT) "
    "FROM runs r JOIN experiments e ON e.experiment_id = r.experiment_id "
    "WHERE r.lifecycle_stage = 'active' AND e.lifecycle_stage = 'active' "
    "ORDER BY r.start_time, r.run_uuid"
)
_POINTS = (
    "SELECT key, step, timestamp, value, is_nan FROM metrics WHERE run_uuid = ? "
    "ORDER BY key, step, timestamp, value"
)
_LEFT = {
    "datasets": "SELECT count(*) FROM inputs WHERE destination_id = ? AND source_type = 'DATASET'",
    "logged models": "SELECT count(*) FROM logged_models WHERE source_run_id = ?",
    "traces": "SELECT count(*) FROM trace_request_metadata "
    "WHERE key = 'mlflow.sourceRun' AND value = ?",
}


class MlflowDatabase:
    """The runs of `mlflow.db`."""

    kind = "MLflow database"

    def __init__(self, path: Path) -> None:
        self._path = path

    def runs(self) -> Iterator[SourceRun | SourceError]:
        """The runs that are not deleted, oldest first."""
        try:
            with closing(self._open()) as database:
                rows = database.execute(_RUNS).fetchall()
            for row in rows:
                yield self._run(*row)
        except sqlite3.Error as error:
            yield SourceError(self._path, f"no readable database of MLflow: {error}")

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(f"{self._path.resolve().as_uri()}?mode=ro", uri=True)

    def _run(
        self,
        run_id: str,
        name: str,
        status: str,
        started: int,
        ended: int,
        experiment: str,
        artifacts: str,
    ) -> SourceRun:
        with closing(self._open()) as database:
            params, tags = (
                dict(
                    database.execute(
                        "SELECT CAST(key AS TEXT), CAST(coalesce(value, '') AS TEXT) "
                        f"FROM {table} WHERE run_uuid = ?",
                        [run_id],
                    )
                )
                for table in ("params", "tags")
            )
        return SourceRun(
            f"mlflow/{run_id}",
            name or tags.get("mlflow.runName") or run_id,
            lambda run: self._points(run_id, artifacts or "", run),
            project=experiment,
            state=status,
            started_ms=started,
            ended_ms=ended,
            params=params,
            tags=tags,
        )

    def _points(self, run_id: str, artifacts: str, run: SourceRun) -> Iterator[Point]:
        run.left["artifacts"] += _files(Path(artifacts.removeprefix("file://")), run_id)
        try:
            with closing(self._open()) as database:
                for what, sql in _LEFT.items():
                    run.left[what] += _count(database, sql, run_id)
                run.left += type(run.left)()
                for key, step, time_ms, value, is_nan in database.execute(_POINTS, (run_id,)):
                    yield Point(key, step, time_ms, float("nan") if is_nan else value)
        except sqlite3.Error as error:
            run.troubles.append(f"{self._path}: {error}")


def _files(folder: Path, run_id: str) -> int:
    """The files of a run's folder: a database may name any folder, such as `/`."""
    if not folder.is_absolute() or run_id not in folder.parts:
        return 0
    count = 0
    with suppress(OSError):  # another user's, or none of this machine
        for found in islice(folder.rglob("*"), MOST_ENTRIES):
            count += found.is_file()
    return count


def _count(database: sqlite3.Connection, sql: str, *given: Any) -> int:
    """A count; 0 where an older MLflow has no such table."""
    try:
        (found,) = database.execute(sql, given).fetchone()
    except sqlite3.OperationalError:
        return 0
    return int(found)
