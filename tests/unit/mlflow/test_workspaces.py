"""Two threads may make the workspace of a team at once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("mlflow")

from mlflow.exceptions import MlflowException

from gangline_mlflow import workspaces


class Store:
    """A store in which another thread makes `theirs` just before our own write."""

    def __init__(self, theirs: set[str]) -> None:
        self.names: set[str] = set()
        self.theirs = theirs

    def list_workspaces(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name) for name in self.names]

    def create_workspace(self, workspace: SimpleNamespace) -> None:
        self.names |= self.theirs
        raise MlflowException(f"{workspace.name} cannot be made")


def test_a_workspace_that_another_thread_made_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces, "_get_workspace_store", lambda: Store({"nlp"}))
    workspaces.make_workspace("nlp")


def test_a_name_that_is_not_allowed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces, "_get_workspace_store", lambda: Store(set()))
    with pytest.raises(MlflowException, match="A cannot be made"):
        workspaces.make_workspace("A")
