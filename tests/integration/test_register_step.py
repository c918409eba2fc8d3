"""The steps export and register against a gate: models that are really exported, and a real job.

The job's token reports a version of its checkpoint, its figures and scores, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from gangline_schemas.artifacts import JobArtifacts
from gangline_schemas.events.checkpoints import CheckpointPromoted
from gangline_service.job_tokens import SECRET_KEY, JobAttempt, make_token
from gangline_storage.local import LocalStore
from gangline_storage.shared_secret import SharedSecret
from gangline_worker.agent.workspace.artifacts import ArtifactStore
from gangline_worker.checkpoint.commit import commit_local
from gangline_worker.checkpoint.export import export_weights
from gangline_worker.checkpoint.loader import Checkpoint
from gangline_worker.checkpoint.saver import AsyncSaver, SaverIdentity
from gangline_worker.steps import export, register
from gangline_worker.training.config import TrainConfig
from gangline_worker.training.model import Transformer
from support.builders.data import small_snapshot
from support.builders.gateway import GatewayHarness
from support.fixtures.gateway_http import NLP, harness, http_client, problem, submit

__all__ = ["harness", "http_client"]
SMALL = {"dim": 16, "layers": 1, "heads": 2, "seq_len": 16}
ALL = {"formats": ["safetensors"], "max_bytes": 10**9, "p99_ms": 60_000, "batch": 8,
       "memory_bytes": 10**11, "difference": 0.0}  # fmt: skip
Change = Callable[[Path], None]


def cut(folder: Path) -> None:
    """Damage the weights."""
    for file in folder.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-100])


def shift(folder: Path) -> None:
    """Other weights than the checkpoint's."""
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        save_file({name: one + 0.01 for name, one in tensors.items()}, file)


@pytest.fixture
def job(http_client: httpx.Client, harness: GatewayHarness, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> str:  # fmt: skip
    """A running job whose checkpoint validated itself, and its environment."""
    if not harness.tail.view().node("n1"):
        harness.join("n1", 8)
    job_id = submit(http_client)
    harness.wait(lambda: (found := harness.tail.job(job_id)) is not None and found.attempt == 1)
    harness.say(CheckpointPromoted(job_id=job_id, attempt=1, step=20, run=f"{job_id}-p"), job_id)
    model = Transformer(TrainConfig.model_validate(SMALL))
    model.reset_buffers()
    model.reset_weights(1)
    tensors = {f"model.{name}": tensor for name, tensor in model.named_parameters()}
    saver = AsyncSaver(SaverIdentity(tmp_path, job_id, 1, 0, 1), lambda _: None)
    saver.begin(20, tensors, {}, {})
    saver.wait()
    saved = tmp_path / "attempt-0001" / "step-0000000020"
    assert commit_local(saved, 1)
    secret = SharedSecret(LocalStore(harness.folder / "store"), SECRET_KEY).value()
    for name, value in {
        "GANGLINE_HYPERPARAMETERS": json.dumps(SMALL),
        "GANGLINE_RESUME_FROM": str(saved),
        "GANGLINE_RUN_ID": job_id,
        "MLFLOW_TRACKING_URI": f"{http_client.base_url}/mlflow/teams/nlp",
        "MLFLOW_TRACKING_TOKEN": make_token(secret, JobAttempt(job_id, 1)),
    }.items():
        monkeypatch.setenv(name, value)
    return job_id


def registered(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Change) -> int:
    """Export the checkpoint, with a change to its files, and register it; the version."""

    def exported(checkpoint: Checkpoint, target: Path) -> None:
        export_weights(checkpoint, target)
        change(target)

    for part in ("in", "out"):
        (folder / part).mkdir()
        monkeypatch.setenv(f"GANGLINE_{part.upper()}", str(folder / part))
    for output in ("model", "serving"):
        (folder / "out" / output).mkdir()
    monkeypatch.setattr(export, "export_weights", exported)
    assert export.main([]) == 0
    (folder / "out" / "serving").rename(folder / "in" / "serving")
    scores = folder / "in" / "scores" / "candidate" / "qa.json"
    scores.parent.mkdir(parents=True)
    scores.write_text(json.dumps({"items": {f"q{item}": 1.0 for item in range(20)}}))
    assert register.main([name, "--wait-minutes", "0.5"]) == 0
    return round(float((folder / "out" / "version").read_text()))


@pytest.mark.parametrize(
    ("name", "limits", "change", "finding"),
    [
        ("sound", {}, lambda _: None, None),
        ("format", {"formats": ["onnx"]}, lambda _: None, "serving format"),
        ("large", {"max_bytes": 1000}, lambda _: None, "serving size_bytes"),
        ("hungry", {"memory_bytes": 1000}, lambda _: None, "serving memory_bytes"),
        ("slow", {"p99_ms": 1e-6}, lambda _: None, "serving p99_ms at batch 8"),
        ("different", {}, shift, "serving difference"),
        ("unloadable", {}, cut, "serving load"),
    ],
)
def test_a_gate_refuses_exports_that_do_not_serve(
    http_client: httpx.Client, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    name: str, limits: dict[str, Any], change: Change, finding: str | None,
) -> None:  # fmt: skip
    torch.set_num_threads(1)
    gate = {
        "team": "nlp", "model": name, "aliases": ["champion"], "baseline": "current",
        "first": "accept", "suites": {"qa": {"at_least": 0.5, "min_items": 10}},
        "serving": {**ALL, **limits},
    }  # fmt: skip
    path = f"/v1/models/{name}"
    http_client.put(f"{path}/gate", headers=NLP, json=gate).raise_for_status()
    version = registered(tmp_path, monkeypatch, name, change)
    shown = http_client.get(path, headers=NLP).json()["version_list"][0]
    assert (shown["version"], shown["checkpoint"]["job_id"]) == (version, job)
    asked = {"version": version}
    made = http_client.post(f"{path}/aliases/champion/promotions", headers=NLP, json=asked).json()
    failed = [one["subject"] for one in made["findings"] if one["verdict"] == "fail"]
    assert failed == ([finding] if finding else []), made["findings"]
    assert made["moved"] == (finding is None)


def test_a_job_reports_about_its_teams_models_and_does_nothing_else(
    http_client: httpx.Client, harness: GatewayHarness, job: str
) -> None:
    secret = SharedSecret(LocalStore(harness.folder / "store"), SECRET_KEY).value()
    own = {"Authorization": f"Bearer {make_token(secret, JobAttempt(job, 1))}"}
    later = {"Authorization": f"Bearer {make_token(secret, JobAttempt(job, 2))}"}
    wanted = {"job_id": job}
    made = http_client.post("/v1/models/mine/versions", headers=own, json=wanted)
    assert (made.status_code, made.json()["user"]) == (201, "ada")
    files = http_client.post("/v1/models/files/versions", headers=own, json={"version": 7})
    assert (files.status_code, files.json()["version"]) == (201, 7)
    profiled = {
        "snapshot": "corpus@xxh3-" + "1" * 32, "made_at": "2026-01-01T00:00:00Z",
        "profile": {"rows": 0, "columns": []},
    }  # fmt: skip
    data = http_client.post("/v1/profiles?team=nlp", headers=own, json=profiled)
    assert (data.status_code, data.json()["snapshot"]) == (201, profiled["snapshot"])
    data = http_client.post("/v1/profiles?team=vision", headers=own, json=profiled)
    assert data.status_code in {403, 404}
    problem(http_client.post("/v1/models/mine/versions", headers=later, json=wanted), 503,
            "job-token")  # fmt: skip
    other = http_client.post("/v1/models/mine/versions?team=vision", headers=own, json=wanted)
    assert other.status_code in {403, 409}
    for method, path, body in (
        ("GET", "/v1/models/mine", None),
        ("GET", "/v1/training-jobs", None),
        ("GET", "/v1/profiles", None),
        ("PUT", "/v1/models/mine/gate", {}),
        ("POST", "/v1/models/mine/versions/1/approvals", {}),
        ("POST", "/v1/models/mine/aliases/champion/promotions", {"version": 1}),
        ("POST", "/v1/models/mine/aliases/champion/rollbacks", {}),
    ):
        problem(http_client.request(method, path, headers=own, json=body), 401, "no-token")


def test_a_version_has_the_snapshot_that_its_job_read_as_an_input(
    http_client: httpx.Client, harness: GatewayHarness, tmp_path: Path
) -> None:
    folder, manifest, _ = small_snapshot(tmp_path)
    store = ArtifactStore(LocalStore(harness.folder / "store"), "nlp")
    outputs = JobArtifacts(outputs={"snapshot": "folder"})
    digest = store.put(outputs, folder.parent, None)["snapshot"].digest
    reads = {"hyperparameters": {"data": "in:text"}, "artifacts": {"inputs": {"text": digest}}}
    job_id = submit(http_client, **reads)
    harness.wait(lambda: harness.tail.job(job_id) is not None)
    harness.say(CheckpointPromoted(job_id=job_id, attempt=1, step=20, run=f"{job_id}-p"), job_id)
    body = {"job_id": job_id}
    made: list[httpx.Response] = []

    def is_registered() -> bool:  # the registry reads promotions from another topic
        made.append(http_client.post("/v1/models/prepared/versions", headers=NLP, json=body))
        return made[-1].status_code == 201

    harness.wait(is_registered)
    assert made[-1].json()["snapshot"] == manifest.name
