"""The snapshot of a job that reads a step's output, from a snapshot that was really prepared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gangline_gateway.problems import ProblemError
from gangline_gateway.trained_on import trained_on
from gangline_schemas.artifacts import JobArtifacts
from gangline_schemas.job import JobSpec
from gangline_storage import LocalStore
from gangline_storage.errors import StoreUnavailable
from gangline_worker.agent.workspace.artifacts import ArtifactStore
from support.builders.data import small_snapshot

OTHER = "tickets@sha256-" + "1" * 64


def job(digest: str, data: object = "in:text", **fields: Any) -> JobSpec:
    artifacts = JobArtifacts(inputs={"text": digest})
    values = {"name": "train", "team": "nlp", "command": ["true"], "resources": {"gpus": 1}}
    given = {"hyperparameters": {"data": data}, "artifacts": artifacts, **fields}
    return JobSpec.model_validate(values | given)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def kept(store: LocalStore, folder: Path) -> str:
    """The digest of a folder that a step left."""
    outputs = JobArtifacts(outputs={folder.name: "folder"})
    return ArtifactStore(store, "nlp").put(outputs, folder.parent, None)[folder.name].digest


def test_it_is_that_of_the_input_which_is_the_data(store: LocalStore, tmp_path: Path) -> None:
    folder, manifest, _ = small_snapshot(tmp_path)
    digest = kept(store, folder)
    assert trained_on(store, "nlp", job(digest)) == manifest.name
    assert trained_on(store, "nlp", job(digest, data_snapshot=OTHER)) == OTHER
    assert trained_on(store, "nlp", job(digest, data="in:other")) is None
    assert trained_on(store, "nlp", job(digest, data="text")) is None
    assert trained_on(store, "nlp", job(digest, data=3)) is None
    assert trained_on(store, "vision", job(digest)) is None
    assert trained_on(None, "nlp", job(digest)) is None


@pytest.mark.parametrize("text", ["[]", "{}", "no JSON", json.dumps({"name": "corpus"})])
def test_a_folder_that_is_no_snapshot_has_none(
    store: LocalStore, tmp_path: Path, text: str
) -> None:
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "manifest.json").write_text(text)
    assert trained_on(store, "nlp", job(kept(store, tmp_path / "left"))) is None


def test_a_store_that_is_away_is_a_problem(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "head", away)
    with pytest.raises(ProblemError) as raised:
        trained_on(store, "nlp", job("0" * 32))
    assert raised.value.status == 503
