"""MLflow's repository of artifacts over a folder; through HTTP it is in tests/integration."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("mlflow")

import sqlalchemy as sa
from mlflow.utils.workspace_context import ServerWorkspaceContext

from gangline_bus.ports import Bus
from gangline_bus.topics import TopicNames
from gangline_mlflow import parts
from gangline_mlflow.artifact_bytes import ArtifactBytes
from gangline_mlflow.artifact_repo import TeamArtifacts
from gangline_mlflow.artifacts import Artifacts
from gangline_mlflow.history import Histories
from gangline_storage import LocalStore


@pytest.mark.parametrize("below", [None, "model"])
def test_a_folder_is_stored_with_all_names_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str | None
) -> None:
    artifacts = Artifacts(LocalStore(tmp_path / "store"))
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'test.db'}")
    artifacts.count_in(ArtifactBytes(engine, None, {}, artifacts.bytes_of))
    nothing = parts.Parts(
        cast("Bus", None), TopicNames(""), cast("Histories", None), artifacts, lambda: None
    )
    monkeypatch.setattr(parts, "_current", [nothing])
    names = {"a", ".hidden/b", "data./c", "x/y/d"}
    for name in names:
        file = tmp_path / "made" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    with ServerWorkspaceContext("nlp"):
        repository = TeamArtifacts("gangline-artifacts:/workspaces/nlp/1")
        repository.log_artifacts(str(tmp_path / "made"), below)
    top = f"workspaces/nlp/1/{below}/" if below else "workspaces/nlp/1/"
    found = {
        info.key.removeprefix(top): artifacts.store.get(info.key).decode()
        for info in artifacts.store.list("workspaces/nlp/")
    }
    assert found == {name: name for name in names}
