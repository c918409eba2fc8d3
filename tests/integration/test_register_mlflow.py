"""The step register with MLflow's own client and stores: files become artifacts of a version.

Once with its stores in the process, and once with MLflow's own server, by HTTP alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import mlflow
import pytest
from mlflow import MlflowClient

from gangline.local.ports import pick_ports
from gangline_worker.steps import register
from support.waiting import wait_until

SERVER_S = 300.0
pytestmark = pytest.mark.nightly


@pytest.fixture(params=["stores", "server"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The tracking URI of MLflow, without this platform."""
    stores = f"sqlite:///{tmp_path / 'mlflow.db'}"
    if request.param == "stores":
        yield stores
        return
    (port,) = pick_ports(1)
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
        "--workers", "1", "--backend-store-uri", stores,
        "--artifacts-destination", str(tmp_path / "artifacts"),
    ]  # fmt: skip
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=clean)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until("MLflow's server", lambda: _answers(server, url), SERVER_S)
        yield url
    finally:
        server.terminate()
        server.wait(60)


def _answers(server: subprocess.Popen[bytes], url: str) -> bool:
    assert server.poll() is None, "it ended"
    try:
        return httpx.get(f"{url}/health", timeout=30).status_code == 200
    except httpx.TransportError:
        return False


def test_files_become_a_version_of_the_model(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("in/model", "in/scores/candidate", "out"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "in/model/config.json").write_text("{}")
    (tmp_path / "in/scores/candidate/qa.json").write_text(json.dumps({"items": {"q": 1.0}}))
    for name, value in {
        "GANGLINE_IN": str(tmp_path / "in"), "GANGLINE_OUT": str(tmp_path / "out"),
        "GANGLINE_RUN_ID": "job-1", "MLFLOW_TRACKING_URI": uri,
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "120",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN", raising=False)
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)
    client = MlflowClient()
    in_process = uri.startswith("sqlite")
    place = client.create_experiment(
        "steps", artifact_location=str(tmp_path / "artifacts") if in_process else None
    )
    for number in (1, 2):
        run = client.create_run(place).info.run_id
        monkeypatch.setenv("MLFLOW_RUN_ID", run)
        assert register.main(["small", "--tag", "kind=test"]) == 0
        assert (tmp_path / "out" / "version").read_text() == f"{float(number)}\n"
        made = client.get_model_version("small", str(number))
        assert (made.run_id, made.tags) == (run, {"gangline.job": "job-1", "kind": "test"})
        assert made.source == f"{client.get_run(run).info.artifact_uri}/model"
        files = client.list_artifacts(run, "model")
        assert [one.path for one in files] == ["model/config.json"]
        assert client.list_artifacts(run, "scores/candidate")
