"""Workspaces of teams in MLflow's store."""

from __future__ import annotations

from mlflow.entities import Workspace
from mlflow.server.workspace_helpers import _get_workspace_store


def make_workspace(name: str) -> None:
    """Make a workspace unless it exists. Raises MlflowException for a name it does not allow."""
    store = _get_workspace_store()
    if name not in {workspace.name for workspace in store.list_workspaces()}:
        store.create_workspace(Workspace(name=name))
