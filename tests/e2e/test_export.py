"""docs/guides/export.md on the real platform: what goes out and comes in is the same."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from gangline.local.ports import pick_ports
from gangline.sdk import Gangline
from support.fixtures.platform import RunningPlatform
from support.harnesses.cli_run import Ran, Runner, runner
from support.waiting import wait_until

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "guides" / "export.md").read_text(encoding="utf-8")
JOB = ROOT / "examples" / "metrics-script" / "job.yaml"
RECORDED = ROOT / "tests" / "unit" / "cli" / "data" / "offline.wandb"
TEAM = ("--team", "default")
STEPS = 10


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def lines(command: str) -> list[str]:
    """The guide's lines with one of our commands."""
    found = [line for block in blocks("sh") for line in block.splitlines()]
    return [line for line in found if line.startswith(f"gangline {command} ")]


@pytest.fixture
def gangline(
    platform: RunningPlatform,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Runner:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = runner(capsys)
    return lambda *arguments: run("--data-dir", str(platform.data_dir), *arguments)


def log(client: MlflowClient, experiment: str) -> str:
    """A run and a child of it; gives the parent's id."""
    folder = client.create_experiment(experiment)
    parent = str(client.create_run(folder, run_name="parent").info.run_id)
    child = client.create_run(folder, run_name="child", tags={"mlflow.parentRunId": parent})
    for run_id in (parent, child.info.run_id):
        client.log_param(run_id, "lr", "0.1")
        client.log_batch(run_id, [Metric("loss", 1 / (1 + n), 1_000 + n, n) for n in range(20)])
        client.log_batch(run_id, [Metric("nan", float("nan"), 1_000, 0)])
        client.set_terminated(run_id)
    return parent


def rows(folder: str, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(Path(folder) / f"{name}.parquet").to_pylist()
    return found


def content(folder: str) -> list[str]:
    """All of an export but the ids and the marks of imports, with the names of the runs."""
    runs = {row["run_id"]: row for row in rows(folder, "runs")}
    found = [f"run {r['name']} {r['started_at']} {r['ended_at']}" for r in runs.values()]
    for kind in ("metrics", "params", "tags"):
        for row in rows(folder, kind):
            value, name = row.pop("value"), row["name"]
            row.pop("attempt", None)
            if name == "mlflow.parentRunId":
                value = runs[value]["name"]
            if not name.startswith("gangline.import."):
                row["run_id"] = runs[row["run_id"]]["name"]
                found.append(f"{kind} {sorted(row.items())} {value}")
    return sorted(found)


def succeeded(ran: Ran) -> Ran:
    assert ran.code == 0, ran.err
    return ran


def job(client: Gangline, gangline: Runner) -> str:
    """A job's run whose losses are all in history."""
    sets = ("--set", "hyperparameters.lr=0.05", "--set", f"hyperparameters.steps={STEPS}")
    run_id = gangline("submit", str(JOB), "-y", "--wait", *sets).out.strip()

    def whole() -> bool:
        found = b"".join(client.points([run_id], names=["loss"]))
        return len(found.splitlines()) == STEPS

    wait_until("the losses in history", whole)
    return run_id


def test_the_guide(gangline: Runner, client: Gangline, tmp_path: Path) -> None:
    run = job(client, gangline)
    log(MlflowClient(str(tmp_path / "mlruns")), "sft")
    log(MlflowClient(f"sqlite:///{tmp_path}/mlflow.db"), "sft")
    shutil.copytree(RECORDED.parent, "wandb/offline-run-1")
    Path("histories/q1").mkdir(parents=True)
    Path("histories/q1/history.jsonl").write_text('{"_step": 1, "loss": 0.5}\n')
    writer = EventFileWriter("logs/train")
    summary = Summary(value=[Summary.Value(tag="acc@5", simple_value=0.5)])
    writer.add_event(Event(wall_time=1.0, step=1, summary=summary))
    writer.close()

    succeeded(gangline("import", "mlruns", *TEAM))  # so that there is an experiment sft
    succeeded(gangline("tag", run, "kind=baseline"))
    where = f"run_id = '{run}' and tags.kind = 'baseline'"
    wait_until("the tag in history", lambda: [*client.runs(where=where)])
    for line in lines("export"):
        words = shlex.split(line.replace("$RUN", run))[1:]
        succeeded(gangline(*words, *TEAM))
    exec(blocks("python")[0], found := {})
    assert found["by_run"].loc[run, "lr"] == "0.05"
    (exported,) = rows("one-run", "runs")
    tags = {row["name"]: row["value"] for row in rows("one-run", "tags")}
    assert (tags["kind"], tags["mlflow.user"]) == ("baseline", exported["user"])
    losses = [row for row in rows("one-run", "metrics") if row["name"] == "loss"]
    assert [row["step"] for row in losses] == [*range(losses[0]["step"], losses[0]["step"] + STEPS)]
    assert (exported["kind"], exported["state"], exported["attempts"]) == ("job", "succeeded", 1)
    assert sorted(row["name"] for row in rows("mlflow-runs", "runs")) == ["child", "parent"]

    for line in lines("import"):
        words = shlex.split(line)[1:]
        ran = succeeded(gangline(*words, *TEAM, "--json"))
        outcomes = {item["outcome"] for item in ran.json["runs"]}
        assert ("renamed: acc@5 is acc_5" in ran.err) == ("import logs" in line)
        assert outcomes == ({"unchanged"} if line == "gangline import mlruns" else {"imported"})
        again = succeeded(gangline(*words, *TEAM, "--json"))
        assert {item["outcome"] for item in again.json["runs"]} == {"unchanged"}, line
        assert "nothing has changed" in again.err

    for line in lines("tensorboard"):
        succeeded(gangline(*shlex.split(line.replace("$RUN", run))[1:]))
    read = EventAccumulator(f"gangline-tensorboard/{run}")
    read.Reload()
    assert [item.value for item in read.Scalars("loss")] == pytest.approx(
        [row["value"] for row in losses]
    )


def test_a_round_trip_is_equal(gangline: Runner, tmp_path: Path) -> None:
    parent = log(MlflowClient(str(tmp_path / "mlruns")), "round")
    succeeded(gangline("import", "mlruns", "--project", "round-1", *TEAM))
    first = ("export", "--mlflow", "--experiment", "round-1", "--out", "one")
    succeeded(gangline(*first, *TEAM))
    succeeded(gangline("import", "one", "--project", "round-2", *TEAM))
    succeeded(gangline("export", "--mlflow", "--experiment", "round-2", "--out", "two", *TEAM))
    assert content("one") == content("two")
    assert len([line for line in content("one") if line.startswith("metrics")]) == 2 * 21
    again = gangline(*first, *TEAM)
    assert again.code == 2
    assert "exists" in again.err
    with Path("mlruns").joinpath(*_metric(parent)).open("a") as file:
        file.write("9000 0.5 99\nno point\n")
    grown = gangline("import", "mlruns", "--project", "round-1", *TEAM, "--json")
    assert grown.code == 1, "a line is wrong"
    outcomes = {item["name"]: item["outcome"] for item in grown.json["runs"]}
    assert outcomes == {"parent": "updated", "child": "unchanged"}
    (run_id,) = [item["run_id"] for item in grown.json["runs"] if item["name"] == "parent"]
    succeeded(gangline("export", run_id, "--out", "grown", *TEAM))
    steps = [row["step"] for row in rows("grown", "metrics") if row["name"] == "loss"]
    assert steps == [*range(20), 99]


def _metric(run_id: str) -> tuple[str, ...]:
    (found,) = Path("mlruns").glob(f"*/{run_id}/metrics/loss")
    return found.relative_to("mlruns").parts


@pytest.mark.nightly
def test_a_running_job_is_followed_to_its_end(gangline: Runner, client: Gangline) -> None:
    steps = ("--set", "hyperparameters.steps=400")  # it still runs once it is followed
    run = succeeded(gangline("submit", str(JOB), "-y", *steps)).out.strip()
    wait_until("its first points", lambda: _exists(client, run))
    ran = succeeded(gangline("tensorboard", run, "-f", "--no-start"))
    assert "new points" in ran.err
    assert client.get(run).ended
    read = EventAccumulator(f"gangline-tensorboard/{run}")
    read.Reload()
    assert len(read.Scalars("loss")) == 400


def _exists(client: Gangline, run: str) -> bool:
    known = [*client.runs(where=f"run_id = '{run}'")]
    return bool(known) and b"loss" in b"".join(client.points([run]))


@pytest.mark.nightly
def test_tensorboard_serves_a_run(
    gangline: Runner, client: Gangline, platform: RunningPlatform
) -> None:
    run = job(client, gangline)
    (port,) = pick_ports(1)
    command = [
        str(Path(sys.executable).with_name("gangline")), "--data-dir", str(platform.data_dir),
        "tensorboard", run, "-f", "--port", str(port),
    ]  # fmt: skip
    tags = f"http://127.0.0.1:{port}/data/plugin/scalars/tags"

    def served() -> Any:
        try:
            answer = httpx.get(tags)
        except httpx.TransportError:
            return None
        return answer.is_success and json.loads(answer.text).get(run)

    with Path("said").open("wb") as said, subprocess.Popen(command, stderr=said) as process:
        try:
            assert "loss" in wait_until("TensorBoard's answer", served)
        finally:
            process.terminate()
    assert served() is None, "it has ended with the command"
    assert process.returncode == 0, Path("said").read_text()
