"""The export of runs: failures half-way, and what is read back from changed files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from gangline.errors import CliError, ExitCode
from gangline.exchange.export import Exporter, of_mlflow
from gangline.exchange.records import Point, SourceRun
from gangline.exchange.sources import source_of
from gangline.sdk.mlflow import MlflowRun
from support.fakes.points import NOW, FakePoints, client, exported, losses


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    away = FakePoints(losses(0, 5), losses(5, 10), fail_after=1)
    out = tmp_path / "out"
    with pytest.raises(CliError):
        Exporter(client(away), out).write([exported("a")])
    assert [*tmp_path.iterdir()] == []
    done = Exporter(client(FakePoints(losses(0, 5), losses(5, 10))), out).write([exported("a")])
    assert (done.runs, done.points, done.params) == (1, 10, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(CliError) as refused:
        Exporter(client(away), out).write([exported("a")])
    assert refused.value.code is ExitCode.USAGE


def test_an_export_of_many_runs_is_read_run_by_run(tmp_path: Path) -> None:
    runs = [exported(f"run-{n:03}", name=f"n{n}") for n in range(250)]
    exporter = Exporter(client(FakePoints(losses(0, 3))), tmp_path / "out")
    exporter.write(runs)  # the fake has points of the first of each hundred
    read = {run.name: len([*run.points()]) for run in _runs(tmp_path / "out")}
    assert len(read) == 250
    assert {name for name, count in read.items() if count == 3} == {"n0", "n100", "n200"}


def test_only_the_row_groups_with_points_of_a_run_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an export of several hundred runs: their ids have no order, so ranges overlap."""
    runs = [exported(f"{'az'[n % 2]}{n}", name=f"n{n}") for n in range(8)]
    Exporter(client(FakePoints()), tmp_path / "out").write(runs)
    file = tmp_path / "out" / "metrics.parquet"
    schema = parquet.read_schema(file)
    with parquet.ParquetWriter(file, schema) as writer:
        for pair in (runs[:2], runs[2:4], runs[4:6], runs[6:]):
            rows = [
                {"run_id": run.run_id, "name": "loss", "step": 1, "time": NOW, "value": 1.0}
                for run in pair
            ]
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
    groups: list[int] = []
    read = parquet.ParquetFile.read_row_group

    def noted(file: Any, group: int, columns: Sequence[str]) -> Any:
        groups.extend([group] * ("value" in columns))
        return read(file, group, columns=columns)

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", noted)
    assert [len([*run.points()]) for run in _runs(tmp_path / "out")] == [1] * 8
    assert groups == [0, 1, 2, 3]


def _runs(path: Path) -> list[SourceRun]:
    return [run for run in source_of(path).runs() if isinstance(run, SourceRun)]


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CliError) as refused:
        Exporter(client(FakePoints()), tmp_path / "out").write([])
    assert "pip install 'gangline[parquet]'" in refused.value.hint


def test_a_time_beyond_all_dates_is_exported_as_the_last_one() -> None:
    made = MlflowRun("a" * 32, "sft", "a", "ada", "RUNNING", -(10**18), 10**18, {}, {}, [])
    row = of_mlflow(made, "nlp").row
    assert (row["started_at"].year, row["ended_at"].year) == (1970, 2200)


@pytest.mark.parametrize("name", ["runs", "metrics", "params"])
def test_an_export_without_a_column_is_an_error(tmp_path: Path, name: str) -> None:
    Exporter(client(FakePoints(losses(0, 3))), tmp_path / "out").write([exported("a")])
    file = tmp_path / "out" / f"{name}.parquet"
    last = {"runs": "ended_at", "metrics": "value", "params": "name"}[name]
    parquet.write_table(parquet.read_table(file).drop_columns([last]), file)
    (error,) = source_of(tmp_path / "out").runs()
    assert "no readable export" in str(error)


TORN = pa.array([b"\xff"]).view(pa.string())
FAR = pa.array([2**61], pa.timestamp("ms", tz="UTC"))


@pytest.mark.parametrize(
    ("file", "column", "value"),
    [("runs", "name", TORN), ("runs", "started_at", FAR), ("metrics", "name", TORN)],
)
def test_values_that_python_cannot_have_are_an_error_of_their_file(
    tmp_path: Path, file: str, column: str, value: pa.Array
) -> None:
    Exporter(client(FakePoints(losses(0, 1))), tmp_path / "out").write([exported("a")])
    path = tmp_path / "out" / f"{file}.parquet"
    table = parquet.read_table(path)
    place = table.schema.get_field_index(column)
    parquet.write_table(table.set_column(place, table.schema.field(place), value), path)
    (found,) = source_of(tmp_path / "out").runs()
    if isinstance(found, SourceRun):
        assert [*found.points()] == []
    assert len(found.troubles if isinstance(found, SourceRun) else [found]) == 1
    parquet.write_table(pa.table({"_step": [1], "x": value}), tmp_path / "history.parquet")
    (history,) = source_of(tmp_path / "history.parquet").runs()
    assert isinstance(history, SourceRun)
    assert len(history.troubles) == 1


def test_a_torn_id_in_the_points_hides_no_points_of_others(tmp_path: Path) -> None:
    Exporter(client(FakePoints(losses(0, 3))), tmp_path / "out").write([exported("a", team="nlp")])
    file = tmp_path / "out" / "metrics.parquet"
    table = parquet.read_table(file)
    place = table.schema.get_field_index("run_id")
    torn = table.slice(0, 1).set_column(place, table.schema.field(place), TORN)
    parquet.write_table(pa.concat_tables([table, torn]), file)
    (run,) = source_of(tmp_path / "out").runs()
    assert isinstance(run, SourceRun)
    assert [*run.points()] == losses(0, 3)
    assert run.troubles == []


def test_an_export_that_pandas_saved_again_has_the_same_points(tmp_path: Path) -> None:
    points = [*losses(1, 3), Point("loss", 4, 4_000, float("nan"))]
    Exporter(client(FakePoints(points)), tmp_path / "out").write([exported("a", team="nlp")])
    (before,) = source_of(tmp_path / "out").runs()
    for file in (tmp_path / "out").iterdir():
        table = pd.read_parquet(file).assign(extra=1.5)
        if file.name == "metrics.parquet":
            table["time"] = table["time"].astype("datetime64[ns, UTC]")
            table["step"] = table["step"].astype(float)
            table.loc[len(table)] = table.loc[0]
            table.loc[len(table) - 1, "step"] = float("nan")
        table[table.columns[::-1]].to_parquet(file)
    (after,) = source_of(tmp_path / "out").runs()
    assert isinstance(before, SourceRun)
    assert isinstance(after, SourceRun)
    assert repr([*after.points()]) == repr(points)
    assert (after.params, after.started_ms) == (before.params, before.started_ms)
    assert sum(after.left.values()) == 1


def test_points_without_statistics_are_found(tmp_path: Path) -> None:
    Exporter(client(FakePoints(losses(0, 3))), tmp_path / "out").write([exported("a", team="nlp")])
    file = tmp_path / "out" / "metrics.parquet"
    parquet.write_table(parquet.read_table(file), file, write_statistics=False)
    (run,) = source_of(tmp_path / "out").runs()
    assert isinstance(run, SourceRun)
    assert [*run.points()] == losses(0, 3)
