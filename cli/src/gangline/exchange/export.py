"""`gangline export`: runs as four Parquet files in a directory that appears when all is written.

Points pass through in pages, so memory does not grow with the length of the runs.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self

from gangline.errors import CliError, ExitCode
from gangline.exchange.parquet import pyarrow
from gangline.sdk import Gangline
from gangline.sdk.mlflow import Mlflow, MlflowRun
from gangline_schemas.api.runs import Run
from gangline_schemas.limits import LATEST

RUNS, METRICS, PARAMS, TAGS = "runs.parquet", "metrics.parquet", "params.parquet", "tags.parquet"
RUNS_AT_ONCE = 100
_POINTS_AT_ONCE = 250_000
_FRESH_MS = 300_000
"""The last points of a run that ended longer ago are surely in the history."""


@dataclass(frozen=True)
class ExportedRun:
    """A row of runs.parquet, and the run's texts."""

    row: Mapping[str, Any]
    params: Mapping[str, str]
    tags: Mapping[str, str]

    @property
    def run_id(self) -> str:
        """Its id."""
        return str(self.row["run_id"])

    @property
    def is_job(self) -> bool:
        """Whether a job made it, and not an MLflow client."""
        return bool(self.row["kind"] == "job")


def of_job(run: Run) -> ExportedRun:
    """A job's run."""
    row = run.model_dump(exclude={"hyperparameters", "tags", "attempt", "gpu_seconds"})
    row |= {"kind": "job", "attempts": run.attempt, "gpu_hours": run.gpu_seconds / 3600}
    tags = {  # the attributes that filters know as tags
        "mlflow.runName": run.name,
        "mlflow.user": run.user,
        "mlflow.source.git.commit": run.code_ref,
        "gangline.data_snapshot": run.data_snapshot,
        "gangline.strategy": run.strategy,
    }
    own = {key: tag for key, tag in tags.items() if tag}
    return ExportedRun(row, run.hyperparameters, own | run.tags)


def of_mlflow(run: MlflowRun, team: str) -> ExportedRun:
    """A run that an MLflow client made; its project is its experiment."""
    row = {
        "run_id": run.run_id,
        "kind": "mlflow",
        "team": team,
        "project": run.experiment,
        "name": run.name,
        "user": run.user,
        "state": run.status,
        "started_at": _time(run.started_ms),
        "ended_at": _time(run.ended_ms),
    }
    return ExportedRun(row, run.params, run.tags)


@dataclass
class Exported:
    """How much an export has."""

    runs: int = 0
    points: int = 0
    params: int = 0
    tags: int = 0


@dataclass
class Exporter:
    """Writes runs of one gateway to `out`. `progress` gets the counts so far, often."""

    client: Gangline
    out: Path
    progress: Callable[[Exported], None] = lambda _: None
    counts: Exported = field(default_factory=Exported)

    def write(self, runs: Iterable[ExportedRun]) -> Exported:
        """Write all of them. Raises CliError; then `out` is not there."""
        left = iter(runs)
        with _appearing(self.out) as folder, _Files(folder) as files:
            while some := [*islice(left, RUNS_AT_ONCE)]:
                self._write(some, files)
        return self.counts

    def _write(self, runs: Sequence[ExportedRun], files: _Files) -> None:
        params = [row for run in runs for row in _rows(run.run_id, run.params)]
        tags = [row for run in runs for row in _rows(run.run_id, run.tags)]
        for name, rows in ((RUNS, [run.row for run in runs]), (PARAMS, params), (TAGS, tags)):
            files.add(name, rows)
        self.counts.runs += len(runs)
        self.counts.params += len(params)
        self.counts.tags += len(tags)
        for page in self._pages(runs):
            self.counts.points += files.add_points(page)
            self.progress(self.counts)

    def _pages(self, runs: Sequence[ExportedRun]) -> Iterator[bytes]:
        jobs = [run.run_id for run in runs if run.is_job]
        others = [run.run_id for run in runs if not run.is_job]
        kinds: tuple[tuple[Literal["job", "mlflow"], list[str]], ...]
        kinds = (("job", jobs), ("mlflow", others))
        for kind, ids in kinds:
            if ids:
                yield from self.client.points(
                    ids,
                    kind=kind,
                    form="parquet",
                    limit=_POINTS_AT_ONCE,
                )


def settled(runs: Iterable[MlflowRun], mlflow: Mlflow, now: datetime) -> Iterator[MlflowRun]:
    """The same runs, each when the points that it was sent lately can be read."""
    now_ms = round(now.timestamp() * 1000)
    for run in runs:
        if run.ended_ms is None or now_ms - run.ended_ms < _FRESH_MS:
            mlflow.settle(run)
        yield run


class _Files:
    """The four files, written row group by row group. `add_points` takes a page."""

    def __init__(self, folder: Path) -> None:
        self._arrow, self._parquet = pyarrow()
        self._schemas = schemas(self._arrow)
        self._writers = {
            name: self._parquet.ParquetWriter(folder / name, schema, compression="zstd")
            for name, schema in self._schemas.items()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def add(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows of one file; what a row lacks is null."""
        if rows:
            self._writers[name].write_table(
                self._arrow.Table.from_pylist(rows, schema=self._schemas[name])
            )

    def add_points(self, page: bytes) -> int:
        """A page of points; gives their number."""
        table = self._parquet.read_table(io.BytesIO(page))
        if table.num_rows:
            schema = self._schemas[METRICS]
            table = table.rename_columns({"time_ms": "time"})
            self._writers[METRICS].write_table(table.select(schema.names).cast(schema))
        return int(table.num_rows)


def schemas(arrow: Any) -> dict[str, Any]:
    """The columns of each file."""
    text, time = arrow.string(), arrow.timestamp("ms", tz="UTC")
    texts = arrow.schema([("run_id", text), ("name", text), ("value", text)])
    runs = {
        **dict.fromkeys(
            ("run_id", "kind", "team", "project", "name", "user", "state", "reason"), text
        ),
        **dict.fromkeys(("attempts", "restarts", "gpus", "priority"), arrow.int32()),
        **dict.fromkeys(("gpu_hours", "cost"), arrow.float64()),
        "gpu_model": text,
        **dict.fromkeys(("submitted_at", "started_at", "ended_at"), time),
        **dict.fromkeys(("strategy", "code_ref", "data_snapshot"), text),
    }
    metrics = {
        "run_id": text, "name": text, "step": arrow.int64(), "time": time,
        "value": arrow.float64(), "attempt": arrow.int32(),
    }  # fmt: skip
    return {
        RUNS: arrow.schema([*runs.items()]),
        METRICS: arrow.schema([*metrics.items()]),
        PARAMS: texts,
        TAGS: texts,
    }


def _rows(run_id: str, texts: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"run_id": run_id, "name": key, "value": value} for key, value in texts.items()]


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """A directory that becomes `out` when the block ends, and is removed when it fails."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CliError(f"{out} exists already", "give another directory as --out", ExitCode.USAGE)
    partial = out.parent / f".{out.name}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        partial.replace(out)
    except OSError as error:
        raise CliError(f"{out} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _time(ms: int | None) -> datetime | None:
    """A client may log any number; one beyond all dates is cut."""
    if ms is None:
        return None
    return datetime.fromtimestamp(max(0, min(ms / 1000, LATEST.timestamp())), UTC)
