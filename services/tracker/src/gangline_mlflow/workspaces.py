"""Workspaces of teams in MLflow's store."""

from __future__ import annotations

from mlflow.entities import Workspace
from mlflow.exceptions import MlflowException
from mlflow.server.workspace_helpers import _get_workspace_store


def make_workspace(name: str) -> None:
    """Make a workspace unless it exists. Raises MlflowException for a name it does not allow."""
    store = _get_workspace_store()

    def exists() -> bool:
        return name in {workspace.name for workspace in store.list_workspaces()}

    if exists():
        return
    try:
        store.create_workspace(Workspace(name=name))
    except MlflowException:  # another thread may have made it meanwhile
        if not exists():
            raise
