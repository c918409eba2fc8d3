"""Export, import and TensorBoard against fakes: failures half-way, names, damaged content."""

from __future__ import annotations

import io
import json
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import httpx
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gangline.errors import CliError, ExitCode
from gangline.exchange.export import ExportedRun, Exporter, of_mlflow
from gangline.exchange.importer import DIGEST_TAG, SOURCE_TAG, Importer
from gangline.exchange.names import Names, fitting
from gangline.exchange.records import PARENT, Point, SourceError, SourceRun
from gangline.exchange.sources import source_of
from gangline.exchange.tensorboard import RunFiles
from gangline.exchange.tfrecord import record
from gangline.sdk import Gangline
from gangline.sdk.mlflow import Mlflow, MlflowRun
from gangline.transport import problem_of
from support.builders.imports import RECORDED

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def exported(run_id: str, **more: Any) -> ExportedRun:
    row = {"run_id": run_id, "kind": "job", "name": "a", "started_at": NOW, "attempts": 1, **more}
    return ExportedRun(row, {"lr": "0.1"}, {})


class FakePoints:
    """A gateway's points; `fail_after` pages the platform is away."""

    def __init__(self, *pages: list[Point], fail_after: int | None = None) -> None:
        self.pages = pages
        self.fail_after = fail_after
        self.asked: list[dict[str, Any]] = []

    def points(self, run_ids: Sequence[str], **asked: Any) -> Iterator[bytes]:
        self.asked.append(asked)
        for number, page in enumerate(self.pages):
            if number == self.fail_after:
                raise CliError("nothing answers")
            rows = [
                {"run_id": run_ids[0], "attempt": 1, "time_ms": p.time_ms, "name": p.name,
                 "step": p.step, "value": p.value}
                for p in page
                if asked.get("first") is None or p.step >= asked["first"]
            ]  # fmt: skip
            if asked.get("form") == "parquet":
                out = io.BytesIO()
                parquet.write_table(pa.Table.from_pylist(rows), out)
                yield out.getvalue()
            else:
                yield "\n".join(json.dumps(row) for row in rows).encode()


def client(points: FakePoints) -> Gangline:
    return cast("Gangline", points)


def losses(first: int, last: int, late_ms: int = 0) -> list[Point]:
    return [Point("loss", n, 1_000 * n + late_ms, 1 / (1 + n)) for n in range(first, last)]


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


def test_new_points_follow_and_none_comes_twice(tmp_path: Path) -> None:
    points = FakePoints(losses(0, 5))
    with RunFiles(client(points), tmp_path, [exported("a")]) as files:
        counts = [files.poll()]
        for page in (losses(0, 5), losses(0, 7), [*losses(0, 7), Point("eval", 5, 7_000, 0.5)]):
            points.pages = (page,)
            counts.append(files.poll([exported("a")]))
        points.pages = ([*losses(0, 3), *losses(3, 6, late_ms=60_000)],)
        counts.append(files.poll([exported("a", attempts=2)]))
    assert counts == [5, 0, 2, 1, 3]
    assert [asked["first"] for asked in points.asked] == [None, None, 4, 4, None]
    read = EventAccumulator(str(tmp_path / "a"))
    read.Reload()
    assert [item.step for item in read.Scalars("loss")] == [*range(7), 3, 4, 5]
    assert [item.step for item in read.Scalars("eval")] == [5]


def test_steps_of_system_metrics_which_are_times_hide_no_later_step(tmp_path: Path) -> None:
    cpu = Point("system/node-1/cpu_utilization_percentage", 1_795_000_000, 1_000, 40.0)
    points = FakePoints()
    with RunFiles(client(points), tmp_path, [exported("a")]) as files:
        counts = []
        for steps in (5, 7, 9, 11):
            points.pages = ([*losses(0, steps), cpu],)
            counts.append(files.poll([exported("a")]))
    assert counts == [6, 2, 2, 2]


class FakeMlflow:
    """What a team's MLflow holds; `fail_after` batches of points the platform is away."""

    def __init__(self) -> None:
        self.runs: dict[str, MlflowRun] = {}
        self.points: dict[str, set[tuple[Any, ...]]] = {}
        self.fail_after: int | None = None
        self.faulty = ""
        """The server fails on this metric."""
        self.linked = 0

    def experiment(self, name: str) -> str:
        return f"id of {name}"

    def search(self, experiments: Sequence[str], where: str) -> Iterator[MlflowRun]:
        for run in self.runs.values():
            wanted = f"tags.`{SOURCE_TAG}` = '{run.tags[SOURCE_TAG]}'"
            if run.experiment in experiments and wanted == where:
                yield run

    def create(self, experiment: str, name: str, started_ms: int, tags: Mapping[str, str]) -> str:
        run_id = f"run-{len(self.runs)}"
        self.runs[run_id] = MlflowRun(
            run_id, experiment, name, "", "RUNNING", started_ms, None, {}, dict(tags), []
        )
        return run_id

    def log_points(self, run_id: str, points: Sequence[Point]) -> None:
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                raise CliError("nothing answers")
        if any(point.name == self.faulty for point in points):
            raise problem_of(httpx.Response(500, request=httpx.Request("POST", "http://x/")))
        self.points.setdefault(run_id, set()).update(points)

    def log_texts(self, run_id: str, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        self.linked += PARENT in tags
        cast("dict[str, str]", self.runs[run_id].params).update(params)
        cast("dict[str, str]", self.runs[run_id].tags).update(tags)

    def end(self, run_id: str, status: str, ended_ms: int | None) -> None:
        assert status in {"FINISHED", "RUNNING"}
        assert ended_ms is None or ended_ms > 0


class FakeSource:
    kind = "source"

    def __init__(self, *runs: SourceRun | SourceError) -> None:
        self._runs = runs

    def runs(self) -> Iterator[SourceRun | SourceError]:
        yield from self._runs


def run_of(name: str, count: int, parent: str = "") -> SourceRun:
    tags = {PARENT: parent, DIGEST_TAG: "of another import"} if parent else {}
    return SourceRun(f"mlflow/{name}", name, lambda _: iter(losses(0, count)), tags=tags)


def test_an_interrupted_import_goes_on_in_the_same_run() -> None:
    mlflow = FakeMlflow()
    mlflow.fail_after = 2
    importer = Importer(cast("Mlflow", mlflow))
    with pytest.raises(CliError):
        importer.run(FakeSource(run_of("a", 5_000)))
    mlflow.fail_after = None
    done = importer.run(FakeSource(run_of("a", 5_000), SourceError(Path("b"), "broken")))
    assert [(run.outcome, run.points) for run in done.runs] == [("updated", 5_000)]
    assert done.troubles == ["b: broken"]
    assert mlflow.points == {"run-0": {*losses(0, 5_000)}}
    again = Importer(cast("Mlflow", mlflow)).run(FakeSource(run_of("a", 5_000)))
    assert [run.outcome for run in again.runs] == ["unchanged"]
    grown = Importer(cast("Mlflow", mlflow)).run(FakeSource(run_of("a", 5_001)))
    assert [run.outcome for run in grown.runs] == ["updated"]
    assert len(mlflow.runs) == 1


def test_a_run_on_which_the_server_fails_does_not_hold_up_the_others() -> None:
    mlflow = FakeMlflow()
    mlflow.faulty = "odd"
    odd = SourceRun("mlflow/odd", "odd", lambda _: iter([Point("odd", 1, 1, 1.0)]))
    done = Importer(cast("Mlflow", mlflow)).run(FakeSource(odd, run_of("a", 2)))
    assert [(run.name, run.outcome) for run in done.runs] == [("odd", "failed"), ("a", "imported")]
    assert done.troubles == ["odd: status 500"]


def test_children_are_linked_to_their_imported_parents() -> None:
    mlflow = FakeMlflow()
    source = FakeSource(run_of("b", 1, "a"), run_of("a", 1), run_of("c", 1, "elsewhere"))
    done = Importer(cast("Mlflow", mlflow)).run(source)
    child, parent, orphan = (mlflow.runs[run.run_id or ""] for run in done.runs)
    assert child.tags[PARENT] == parent.run_id
    assert PARENT not in orphan.tags
    assert child.tags[DIGEST_TAG] != "of another import"
    assert done.left == {"links to parent runs that are not in the source": 1}


def test_an_import_that_was_interrupted_before_its_links_makes_them_the_next_time() -> None:
    mlflow = FakeMlflow()
    mlflow.fail_after = 2
    children = [run_of("b", 1, "a"), run_of("d", 1, "elsewhere")]
    with pytest.raises(CliError):
        Importer(cast("Mlflow", mlflow)).run(FakeSource(*children, run_of("a", 1)))
    mlflow.fail_after = None
    done = Importer(cast("Mlflow", mlflow)).run(FakeSource(*children, run_of("a", 1)))
    assert [run.outcome for run in done.runs] == ["unchanged", "unchanged", "updated"]
    child, orphan, parent = (mlflow.runs[run.run_id or ""] for run in done.runs)
    assert child.tags[PARENT] == parent.run_id
    assert PARENT not in orphan.tags
    linked = mlflow.linked
    again = Importer(cast("Mlflow", mlflow)).run(FakeSource(*children, run_of("a", 1)))
    assert [run.outcome for run in again.runs] == ["unchanged"] * 3
    assert mlflow.linked == linked == 1


def test_points_out_of_range_are_left_out() -> None:
    points = [Point("a", 2**63, 0, 1.0), Point("a", 0, -(2**63) - 1, 1.0), Point("a", 1, 1, 1.0)]
    run = SourceRun("x", "x", lambda _: iter(points))
    assert [*run.points()] == points[2:]
    assert sum(run.left.values()) == 2


@pytest.mark.parametrize(
    "odd",
    [Point(b"a", 1, 1, 1.0), Point("a", None, 1, 1.0), Point("a", 1, 1, "x")],  # type: ignore[arg-type]
)
def test_points_of_other_types_are_left_out(odd: Point) -> None:
    run = SourceRun("x", "x", lambda _: iter([odd, Point("a", 1, 1, 1.0)]))
    assert [*run.points()] == [Point("a", 1, 1, 1.0)]
    assert sum(run.left.values()) == 1


def test_texts_and_times_that_no_server_takes() -> None:
    torn, mlflow = "a\ud800", FakeMlflow()
    points = [Point(torn, 1, 1, 1.0)]
    run = SourceRun(torn, torn, lambda _: iter(points), started_ms=10**300, ended_ms=-(10**300))
    run.project, run.params, run.tags = torn, {torn: torn}, {torn: torn}
    Importer(cast("Mlflow", mlflow)).run(FakeSource(run))
    (made,) = mlflow.runs.values()
    assert (made.name, made.experiment, made.started_ms) == ("a?", "id of a?", 0)
    assert (made.params, made.tags["a_"]) == ({"a_": "a?"}, "a?")
    assert mlflow.points == {"run-0": {Point("a_", 1, 1, 1.0)}}


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


def test_names_that_mlflow_takes() -> None:
    names = Names()
    wanted = ["loss", "acc@5", "acc_5", "../x", "/a//b", "", "é", "n" * 300, "n" * 301, "acc@5"]
    given = [names.of(name) for name in wanted]
    assert given[:7] == ["loss", "acc_5", "acc_5_2", "x", "a/b", "_", "é"]
    assert given[9] == "acc_5"
    assert len({*given}) == len(wanted) - 1
    assert max(map(len, given)) <= 250
    left: Counter[str] = Counter()
    assert fitting({"a": "x" * 11, "b": "y"}, 10, "tags", left) == {"a": "x" * 10, "b": "y"}
    assert left == {"tags of more than 10 characters (cut)": 1}


@given(st.text(min_size=1, max_size=20))
def test_any_name_becomes_one_that_mlflow_takes(name: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    taken = Names().of(name)
    _validate_metric_name(taken)  # raises for a name that MLflow refuses
    assert Names().of(taken) == taken


@given(st.lists(st.binary(max_size=60), max_size=4), st.data())
def test_no_content_of_a_record_ends_an_import(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], data: st.DataObject
) -> None:
    """With right checksums: events and records of W&B, a byte of each changed."""
    folder = tmp_path_factory.mktemp("fuzz")
    event = b"\x09\x00\x00\x00\x00\x00\x00$@\x10\x05*\x0f\n\r\n\x04loss\x15\x00\x00\x80?"
    for original in (event, event + event):
        changed = bytearray(original)
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
        records.append(bytes(changed))
    (folder / "events.out.tfevents.1.x").write_bytes(b"".join(map(record, records)))
    for run in source_of(folder).runs():
        assert isinstance(run, SourceRun)
        assert all(isinstance(point.value, float) for point in run.points())
    content = bytearray(RECORDED.read_bytes())
    place = data.draw(st.integers(14, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    at = 7
    while at < len(content):  # all checksums are right again
        length = struct.unpack("<H", content[at + 4 : at + 6])[0]
        body = bytes(content[at + 6 : at + 7 + length])
        content[at : at + 4] = struct.pack("<I", zlib.crc32(body))
        at += 7 + length
    file = folder / "run-x.wandb"
    file.write_bytes(content)
    for found in source_of(file).runs():
        if isinstance(found, SourceRun):
            assert all(isinstance(point, Point) for point in found.points())
