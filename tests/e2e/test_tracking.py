"""The tracking SDK against the real platform: away in the middle, killed scripts, jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import gangline
from gangline.sdk import Gangline, connect
from gangline_schemas.mlflow_workspace import mlflow_run_id
from support.fixtures.platform import RunningPlatform
from support.waiting import wait_until

pytest.importorskip("mlflow")

POINTS = 3000
KILLS = {1000: "gateway-0", 2000: "mlflow-0"}


@pytest.fixture(autouse=True)
def _environment(
    platform: RunningPlatform, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GANGLINE_URL", platform.client.url)
    monkeypatch.setenv("GANGLINE_TOKEN", platform.client.token)
    monkeypatch.setenv("GANGLINE_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("GANGLINE_TEAM", "default")


class Server:
    """What the server has, asked as MLflow's client does."""

    def __init__(self, platform: RunningPlatform) -> None:
        self._http = httpx.Client(
            base_url=f"{platform.client.url}/mlflow/teams/default/api/2.0",
            headers={"Authorization": f"Bearer {platform.client.token}"},
            timeout=120,
        )

    def close(self) -> None:
        self._http.close()

    def run(self, run_id: str) -> Any:
        return self._get("mlflow/runs/get", run_id=run_id)["run"]

    def newest(self, run_id: str, name: str) -> float | None:
        metrics = self.run(run_id)["data"].get("metrics", [])
        return next((one["value"] for one in metrics if one["key"] == name), None)

    def points(self, run_id: str, name: str) -> list[tuple[int, float]]:
        found: list[tuple[int, float]] = []
        token = ""
        while True:
            page = self._get(
                "mlflow/metrics/get-history", run_id=run_id, metric_key=name, page_token=token,
                max_results="1000",
            )  # fmt: skip
            found += [(int(one["step"]), one["value"]) for one in page.get("metrics", [])]
            token = page.get("next_page_token", "")
            if not token:
                return sorted(found)

    def file(self, run_id: str, name: str) -> bytes:
        place = self.run(run_id)["info"]["artifact_uri"].removeprefix("mlflow-artifacts:/")
        answer = self._http.get(f"mlflow-artifacts/artifacts/{place}/{name}")
        return answer.raise_for_status().content

    def _get(self, path: str, **query: str) -> Any:
        return self._http.get(path, params=query).raise_for_status().json()


@pytest.fixture
def server(platform: RunningPlatform) -> Iterator[Server]:
    found = Server(platform)
    yield found
    found.close()


@pytest.mark.nightly
def test_points_are_there_once_after_the_gateway_and_mlflow_were_killed(
    platform: RunningPlatform, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("three thousand")
    with gangline.init(
        project="away", name="night", config={"lr": 0.1, "net": {"depth": 3}}
    ) as run:
        for step in range(POINTS):
            run.log({"loss": 1 / (1 + step), "eval": {"acc": step / POINTS}}, step=step)
            if step in KILLS:
                wait_until("some points", lambda: run.progress.uploaded > 500)
                os.kill(platform.pid(KILLS[step]), signal.SIGKILL)
        run.log_artifact(tmp_path / "notes.txt", name="texts/notes.txt")
        run.set_tags({"kind": "night"})
        run.finish(timeout_s=120)
    assert run.id is not None
    assert server.points(run.id, "loss") == [(step, 1 / (1 + step)) for step in range(POINTS)]
    assert server.points(run.id, "eval/acc") == [(s, s / POINTS) for s in range(POINTS)]
    found = server.run(run.id)
    assert found["info"]["status"] == "FINISHED"
    assert found["info"]["run_name"] == "night"
    params = {one["key"]: one["value"] for one in found["data"]["params"]}
    assert params == {"lr": "0.1", "net/depth": "3"}
    assert {"key": "kind", "value": "night"} in found["data"]["tags"]
    assert server.file(run.id, "texts/notes.txt") == b"three thousand"
    assert not (tmp_path / "kept").exists()


KILLED = """
import os, signal, time
import gangline

run = gangline.init(project="killed", mode="MODE")
for step in range(500):
    run.log({"loss": float(step)}, step=step)
while run.progress.queued:
    time.sleep(0.01)
print(run.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_a_killed_script_s_run_is_uploaded_by_sync(
    mode: str, server: Server, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KILLED.replace("MODE", mode)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    folder = Path(ended.stdout.strip())
    with connect() as client:
        (first,) = client.sync(folder)
        (again,) = client.sync(folder.parent)
        (folder / "upload.json").unlink()  # as if nothing had been acknowledged
        (twice,) = client.sync(folder)
    assert (first.state, again.state) == ("uploaded", "uploaded before")
    assert twice.run_id == first.run_id
    assert again.run_id == first.run_id
    assert first.run_id is not None
    assert server.points(first.run_id, "loss") == [(step, float(step)) for step in range(500)]
    assert server.run(first.run_id)["info"]["status"] == "KILLED"


IN_A_JOB = """
import pathlib
import gangline

run = gangline.init(config={"lr": 1.0, "depth": 2}, tags=["own"])
for step in range(1, 31):
    run.log({"loss": run.config.lr / step, "nested": {"a": step}}, step=step)
pathlib.Path("notes.txt").write_text("of rank 0")
run.log_artifact("notes.txt")
run.finish()
with gangline.init(name="child") as child:
    child.log({"loss": 0.25})
print("child is", child.id, flush=True)
print("lr is", run.config.lr, flush=True)
"""


def _lines(client: Gangline, job_id: str, last: str) -> list[str]:
    """All lines of rank 0, once this one is among them: logs may follow the job's end."""
    lines = [line.text for line in client.logs(job_id, rank=0)]
    return lines if last in lines else []


def test_a_job_s_own_run_and_its_child(server: Server) -> None:
    spec = {
        "name": "tracked", "team": "default", "command": ["python", "-c", IN_A_JOB],
        "resources": {"gpus": 2}, "hyperparameters": {"lr": 0.5},
    }  # fmt: skip
    with connect() as client:
        job = client.wait(client.submit(spec).job_id, timeout_s=300)
        assert job.state == "succeeded", job.failure
        said = wait_until("the last line", lambda: _lines(client, job.job_id, "lr is 0.5"))
        (child_id,) = [line.rpartition(" ")[2] for line in said if line.startswith("child is")]
        wait_until("the curve", lambda: _last(client, job.job_id, "nested/a") == (30, 30.0))
        assert _last(client, job.job_id, "loss") == (30, 0.5 / 30)
    own_id = mlflow_run_id(job.job_id)
    assert server.points(own_id, "loss") == [(step, 0.5 / step) for step in range(1, 31)]
    newest = wait_until("the newest values in MLflow", lambda: server.newest(own_id, "loss"))
    assert newest == 0.5 / 30
    own = server.run(own_id)
    params = {one["key"]: one["value"] for one in own["data"]["params"]}
    assert (params["lr"], params["depth"]) == ("0.5", "2")
    assert {"key": "own", "value": "true"} in own["data"]["tags"]
    assert server.file(own_id, "notes.txt") == b"of rank 0"
    child = server.run(child_id)
    assert {"key": "mlflow.parentRunId", "value": own_id} in child["data"]["tags"]
    assert child["info"]["status"] == "FINISHED"
    assert server.points(child_id, "loss") == [(0, 0.25)]


def _last(client: Gangline, job_id: str, name: str) -> tuple[int, float] | None:
    curves = [curve for curve in client.curves(job_id, [name]) if curve.points]
    return (curves[0].points[-1].step, curves[0].points[-1].value) if curves else None
