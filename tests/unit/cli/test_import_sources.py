"""Sources of imports, written by the genuine packages. Those of W&B: test_import_wandb.py."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Dataset, DatasetInput, Metric
from mlflow.tracking import MlflowClient
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.plugins.scalar import metadata as scalar
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util import tensor_util

from gangline.errors import CliError
from gangline.exchange import mlflow_database
from gangline.exchange.records import Point, SourceError, SourceRun, files_below
from gangline.exchange.sources import source_of
from support.builders.imports import RECORDED, runs, values


def log(client: MlflowClient) -> str:
    """A run with what a run can have."""
    experiment = client.create_experiment("sft")
    run = client.create_run(experiment, start_time=1_000, run_name="first", tags={"who": "ada"})
    run_id = str(run.info.run_id)
    client.log_param(run_id, "lr", 3e-4)
    client.log_param(run_id, "model/dim", "512\nlines")
    points = [Metric("loss", 2.0 / (1 + n), 1_000 + n, n) for n in range(5)]
    points += [Metric("eval/acc", math.nan, 2_000, 0), Metric("eval/acc", 0.5, 2_001, -3)]
    client.log_batch(run_id, metrics=points)
    client.log_text(run_id, "notes", "notes.txt")
    dataset = Dataset(name="corpus", digest="1", source_type="local", source="{}")
    client.create_logged_model(experiment, name="model", source_run_id=run_id)
    client.log_inputs(run_id, [DatasetInput(dataset)])
    client.set_terminated(run_id, "FAILED", end_time=3_000)
    client.delete_run(client.create_run(experiment).info.run_id)
    return run_id


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of MLflow without runs: to make its tables takes a second."""
    path = tmp_path_factory.mktemp("tables") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.mark.parametrize("store", ["files", "database"])
def test_mlflow(tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch, tables: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    path = tmp_path / "mlruns" if store == "files" else tmp_path / "mlflow.db"
    if store == "database":
        shutil.copy(tables, path)
    client = MlflowClient(str(path) if store == "files" else f"sqlite:///{path}")
    run_id = log(client)
    (run,) = runs(path)
    assert (run.source_id, run.name, run.project) == (f"mlflow/{run_id}", "first", "sft")
    assert (run.state, run.started_ms, run.ended_ms) == ("FAILED", 1_000, 3_000)
    assert run.params == {"lr": "0.0003", "model/dim": "512\nlines"}
    assert run.tags == {"who": "ada", "mlflow.runName": "first"}
    history = client.get_metric_history(run_id, "loss")
    expected = {Point(m.key, m.step, m.timestamp, m.value) for m in history}
    found = [*run.points()]
    assert {point for point in found if point.name == "loss"} == expected
    assert {(p.step, str(p.value)) for p in found if p.name == "eval/acc"} == {
        (0, "nan"),
        (-3, "0.5"),
    }
    assert run.left == {"artifacts": 1, "datasets": 1, "logged models": 1}
    assert run.troubles == []


def test_a_database_that_names_another_folder_has_no_files_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mlflow.db"
    shutil.copy(tables, path)
    run_id = log(MlflowClient(f"sqlite:///{path}"))

    def counted(folder: Path) -> int:
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(5):
            (folder / str(number)).touch()
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE runs SET artifact_uri = ?", (f"file://{folder}",))
        (run,) = runs(path)
        assert len([*run.points()]) == 7
        return run.left["artifacts"]

    assert counted(tmp_path / "home") == 0
    assert counted(tmp_path / "s" / run_id / "artifacts") == 5
    monkeypatch.setattr(mlflow_database, "MOST_ENTRIES", 3)
    assert counted(tmp_path / "s" / run_id / "artifacts") == 3


def test_mlflow_files_that_are_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient(str(tmp_path / "mlruns"))
    run_id = log(client)
    (folder,) = tmp_path.glob(f"mlruns/*/{run_id}")
    with (folder / "metrics" / "loss").open("a") as file:
        file.write("what is this\n7 0.5 9\n")
    other = client.create_run(client.get_experiment_by_name("sft").experiment_id)
    (folder.parent / other.info.run_id / "meta.yaml").write_text("a: [")
    found = [*source_of(tmp_path).runs()]
    (error,) = [run for run in found if isinstance(run, SourceError)]
    assert "meta.yaml: no readable YAML" in str(error)
    (run,) = [run for run in found if isinstance(run, SourceRun)]
    assert values(run)["loss", 9] == 0.5
    assert run.troubles == [f"{folder / 'metrics' / 'loss'}:6: no line 'time value step'"]
    assert len([*run.points()]) == 8
    assert len(run.troubles) == 1, "the second reading says it once"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A run of MLflow's file store, for files that no program wrote."""
    run = tmp_path / "mlruns" / "0" / "r1"
    (run / "params").mkdir(parents=True)
    (run / "metrics").mkdir()
    (run.parent / "meta.yaml").write_text("name: sft\n")
    (run / "meta.yaml").write_text("run_id: r1\nrun_name: first\n")
    return run


def test_a_link_that_leads_out_of_a_run_is_not_read(hostile: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "key").write_text("private")
    (hostile / "params" / "key").symlink_to(tmp_path / "keys" / "key")
    (hostile / "tags").symlink_to(tmp_path / "keys")
    (run,) = runs(tmp_path / "mlruns")
    assert (run.params, run.tags) == ({}, {})


@pytest.mark.parametrize("value", ["2026-13-45", "[" * 5000, "9" * 5000])
def test_yaml_that_cannot_be_read_is_an_error_of_its_file(hostile: Path, value: str) -> None:
    (hostile / "meta.yaml").write_text(f"run_id: r1\nstart_time: {value}\n")
    (error,) = source_of(hostile.parent).runs()
    assert "meta.yaml: no readable YAML" in str(error)


def test_a_name_of_endless_aliases_is_none(hostile: Path) -> None:
    levels = [f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]" for n in range(5)]
    bomb = "\n".join(["run_id: r1", "a0: &a0 [x]", *levels, "run_name: *a5"])
    (hostile / "meta.yaml").write_text(bomb)
    assert [run.name for run in runs(hostile.parent)] == ["r1"]


def test_many_wrong_lines_are_counted(hostile: Path) -> None:
    (hostile / "metrics" / "loss").write_text("wrong\n" * 1000 + "7 0.5 9\n")
    (run,) = runs(hostile.parent)
    assert values(run) == {("loss", 9): 0.5}
    assert (len(run.troubles), run.left) == (10, {"more wrong lines": 990})


def test_a_database_with_values_of_other_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    path = shutil.copy(tables, tmp_path / "mlflow.db")
    run_id = log(MlflowClient(f"sqlite:///{path}"))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE tags SET value = NULL WHERE key = 'who'")
        database.execute("UPDATE runs SET name = x'61', start_time = 'once'")
        database.execute("UPDATE runs SET artifact_uri = ?", ["/" + "a" * 5000])
    (run,) = (run for run in runs(path) if run.source_id.endswith(run_id))
    assert (run.tags["who"], run.name, run.started_ms) == ("", "a", 0)
    assert values(run)


def tensor(tag: str, value: float) -> Any:
    """A scalar as TensorFlow 2 writes it."""
    return Summary.Value(
        tag=tag,
        metadata=scalar.create_summary_metadata(tag, ""),
        tensor=tensor_util.make_tensor_proto(value, dtype="float32"),
    )


def write_events(folder: Path) -> Path:
    """Scalars of both kinds, an image, a histogram, texts and hyperparameters."""
    writer = EventFileWriter(str(folder))
    for step in range(5):
        both = [Summary.Value(tag="loss", simple_value=1 / (1 + step)), tensor("acc", step / 4)]
        writer.add_event(Event(wall_time=10.5 + step, step=step, summary=Summary(value=both)))
    other = [
        Summary.Value(tag="image", image=Summary.Image(height=1, width=1)),
        Summary.Value(tag="weights", histo={"min": 0.0}),
    ]
    writer.add_event(Event(wall_time=20.0, step=-7, summary=Summary(value=other)))
    start = plugin_data_pb2.SessionStartInfo()
    start.hparams["lr"].number_value = 0.5
    start.hparams["opt"].string_value = "adamw"
    start.hparams["flag"].bool_value = True
    content = plugin_data_pb2.HParamsPluginData(session_start_info=start, version=0)
    told = Summary.Value(
        tag=hparams.SESSION_START_INFO_TAG,
        metadata=hparams.create_summary_metadata(content),
        tensor=hparams.NULL_TENSOR,
    )
    writer.add_event(Event(wall_time=20.0, summary=Summary(value=[told])))
    writer.close()
    (file,) = folder.glob("*tfevents*")
    return file


def test_event_files(tmp_path: Path) -> None:
    write_events(tmp_path / "logs" / "train")
    write_events(tmp_path / "logs" / "eval")
    evaluation, training = runs(tmp_path / "logs")
    assert (evaluation.name, training.name) == ("eval", "train")
    found = {(p.name, p.step, p.time_ms): p.value for p in training.points()}
    assert found == pytest.approx(
        {("loss", n, 10_500 + 1000 * n): 1 / (1 + n) for n in range(5)}
        | {("acc", n, 10_500 + 1000 * n): n / 4 for n in range(5)}
    )
    assert training.left == {"images": 1, "histograms": 1}
    assert training.params == {"lr": "0.5", "opt": "adamw", "flag": "true"}
    assert (training.ended_ms or 0) >= 20_000


@pytest.mark.parametrize("change", ["cut", "flipped"])
def test_a_damaged_event_file(tmp_path: Path, change: str) -> None:
    file = write_events(tmp_path / "logs")
    content = bytearray(file.read_bytes())
    if change == "cut":
        del content[-3:]
    else:
        content[content.index(b"acc") + 1] ^= 255
    file.write_bytes(content)
    (run,) = runs(tmp_path / "logs")
    found = values(run)
    if change == "cut":
        assert run.troubles == []
        assert run.left[f"incomplete last records ({file.name})"] == 1
        assert len(found) == 10
    else:
        assert found == {}
        (trouble,) = run.troubles
        assert str(file) in trouble
        assert "checksum" in trouble


@pytest.mark.parametrize("pipe", ["z.tfevents.1", "z.wandb", "history.jsonl"])
def test_a_pipe_is_not_read(tmp_path: Path, pipe: str) -> None:
    os.mkfifo(tmp_path / pipe)
    for pattern in ("*tfevents.*", "*.wandb", "*history.*"):
        assert files_below(tmp_path, pattern) == []


def test_a_directory_with_several_sources_says_what_is_not_read(tmp_path: Path) -> None:
    run = tmp_path / "mlruns" / "1" / ("a" * 32)
    run.mkdir(parents=True)
    (run / "meta.yaml").write_text(f"run_id: {run.name}\nrun_name: first\n")
    (run.parent / "meta.yaml").write_text("name: sft\n")
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "run-x.wandb").write_bytes(RECORDED.read_bytes())
    said: list[str] = []
    (found,) = source_of(tmp_path, said.append).runs()
    assert isinstance(found, SourceRun)
    assert found.name == "first"
    (line,) = said
    assert "W&B run directory" in line
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("CREATE TABLE x (y)")
    assert source_of(tmp_path, said.append).kind == "MLflow database"
    assert len(said) == 3


def test_what_holds_no_runs(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    for path in (tmp_path, tmp_path / "notes.txt", tmp_path / "none"):
        with pytest.raises(CliError) as refused:
            source_of(path)
        assert str(path) in refused.value.message


def test_a_file_of_an_export_is_not_a_history(tmp_path: Path) -> None:
    for name in ("runs.parquet", "metrics.parquet"):
        (tmp_path / name).write_bytes(b"PAR1")
        with pytest.raises(CliError, match="part of an export") as refused:
            source_of(tmp_path / name)
        assert str(tmp_path) in refused.value.hint
