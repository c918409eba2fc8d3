"""MLflow's repository of artifacts over a folder; through HTTP it is in tests/integration."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("mlflow")

import sqlalchemy as sa
from mlflow.exceptions import MlflowException
from mlflow.utils.workspace_context import ServerWorkspaceContext

from gangline_bus.ports import Bus
from gangline_bus.topics import TopicNames
from gangline_mlflow import parts
from gangline_mlflow.artifact_bytes import ArtifactBytes
from gangline_mlflow.artifact_repo import TeamArtifacts
from gangline_mlflow.artifacts import Artifacts
from gangline_mlflow.history import Histories
from gangline_storage import LocalStore


@pytest.fixture
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifacts:
    """Of this process, counted in a database that is locked at once or not at all."""
    found = Artifacts(LocalStore(tmp_path / "store"))
    engine = sa.create_engine(database(tmp_path), connect_args={"timeout": 0})
    found.count_in(ArtifactBytes(engine, None, {}, found.bytes_of))
    nothing = parts.Parts(
        cast("Bus", None), TopicNames(""), cast("Histories", None), found, lambda: None
    )
    monkeypatch.setattr(parts, "_current", [nothing])
    return found


def database(folder: Path) -> str:
    return f"sqlite:///{folder / 'test.db'}"


@pytest.mark.parametrize("below", [None, "model"])
def test_a_folder_is_stored_with_all_names_as_they_are(
    tmp_path: Path, artifacts: Artifacts, below: str | None
) -> None:
    names = {"a", ".hidden/b", "data./c", "x/y/d"}
    for name in names:
        file = tmp_path / "made" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    with ServerWorkspaceContext("nlp"):
        repository = TeamArtifacts("gangline-artifacts:/workspaces/nlp/1")
        repository.log_artifacts(str(tmp_path / "made"), below)
    top = f"workspaces/nlp/1/{below}/" if below else "workspaces/nlp/1/"
    listed = [info.key for info in artifacts.store.list("workspaces/nlp/")]
    found = {key.removeprefix(top): artifacts.store.get(key).decode() for key in listed}
    assert found == {name: name for name in names}


@pytest.mark.usefixtures("artifacts")
def test_a_database_that_does_not_answer_is_told_as_503(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    repository = TeamArtifacts("gangline-artifacts:/workspaces/nlp/1")
    with sa.create_engine(database(tmp_path)).connect() as other, ServerWorkspaceContext("nlp"):
        other.exec_driver_sql("BEGIN EXCLUSIVE")
        with pytest.raises(MlflowException, match="database") as refused:
            repository.log_artifact(str(tmp_path / "a"))
        assert refused.value.get_http_status_code() == 503
        other.exec_driver_sql("ROLLBACK")
        repository.log_artifact(str(tmp_path / "a"))
