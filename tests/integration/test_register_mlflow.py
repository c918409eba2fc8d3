"""The step register with MLflow's own client and stores: files become artifacts of a version."""

from __future__ import annotations

import json
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from gangline_worker.steps import register


@pytest.mark.nightly
def test_files_become_a_version_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("in/model", "in/scores/candidate", "out"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "in/model/config.json").write_text("{}")
    (tmp_path / "in/scores/candidate/qa.json").write_text(json.dumps({"items": {"q": 1.0}}))
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for name, value in {
        "GANGLINE_IN": str(tmp_path / "in"), "GANGLINE_OUT": str(tmp_path / "out"),
        "GANGLINE_RUN_ID": "job-1", "MLFLOW_TRACKING_URI": uri,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)
    client = MlflowClient()
    place = client.create_experiment("steps", artifact_location=str(tmp_path / "artifacts"))
    for number in (1, 2):
        run = client.create_run(place).info.run_id
        monkeypatch.setenv("MLFLOW_RUN_ID", run)
        assert register.main(["small", "--tag", "kind=test"]) == 0
        assert (tmp_path / "out" / "version").read_text() == f"{float(number)}\n"
        made = client.get_model_version("small", str(number))
        assert (made.run_id, made.tags) == (run, {"gangline.job": "job-1", "kind": "test"})
        assert made.source == f"{tmp_path}/artifacts/{run}/artifacts/model"
        files = client.list_artifacts(run, "model")
        assert [one.path for one in files] == ["model/config.json"]
        assert client.list_artifacts(run, "scores/candidate")
