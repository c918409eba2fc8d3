"""Answers the registry service: versions, and the table of protected aliases.

The gateway lets no user reach these routes.
"""

from __future__ import annotations

from anyio import to_thread
from mlflow.exceptions import MlflowException
from mlflow.utils.workspace_context import ServerWorkspaceContext
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import ASGIApp, Receive, Scope, Send

from gangline_mlflow.asgi import answer, refuse, whole_body
from gangline_mlflow.database import DatabaseAway
from gangline_mlflow.protected_registry import ProtectedRegistry
from gangline_mlflow.workspaces import make_workspace
from gangline_schemas.base import Model
from gangline_schemas.mlflow_registry import (
    ALIASES_PATH,
    VERSIONS_PATH,
    AliasesQuery,
    VersionAnswer,
    VersionQuery,
)


class RegistryLane:
    """An ASGI application before the guard: aliases are of several teams."""

    def __init__(self, app: ASGIApp, store: ProtectedRegistry) -> None:
        self._app, self._store = app, store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the registry service, or hand the request on."""
        if scope["path"] not in {VERSIONS_PATH, ALIASES_PATH} or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = await whole_body(receive)
        work = self._version if scope["path"] == VERSIONS_PATH else self._aliases
        try:
            found = await to_thread.run_sync(work, body)
        except ValidationError as error:
            await refuse(send, 400, "INVALID_PARAMETER_VALUE", str(error))
        except MlflowException as error:
            await refuse(send, error.get_http_status_code(), error.error_code, error.message)
        except (DatabaseAway, SQLAlchemyError) as error:
            text = f"the database does not answer: {type(error).__name__}"
            await refuse(send, 503, "TEMPORARILY_UNAVAILABLE", text)
        else:
            await answer(send, 200, found.model_dump_json().encode())

    def _version(self, body: bytes) -> Model:
        asked = VersionQuery.model_validate_json(body)
        make_workspace(asked.workspace)
        with ServerWorkspaceContext(asked.workspace):
            return VersionAnswer(version=self._store.version_for(asked))

    def _aliases(self, body: bytes) -> Model:
        asked = AliasesQuery.model_validate_json(body)
        return self._store.project(asked.aliases)
