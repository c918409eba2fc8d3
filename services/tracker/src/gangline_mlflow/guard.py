"""The first part of the server: only the gateway is answered, and each team has its workspace."""

from __future__ import annotations

import asyncio
import hmac

from mlflow.entities import Workspace
from mlflow.exceptions import MlflowException
from mlflow.server.workspace_helpers import _get_workspace_store
from starlette.types import ASGIApp, Receive, Scope, Send

from gangline_mlflow.asgi import refuse

WORKSPACE = b"x-mlflow-workspace"
_OPEN = frozenset({"/health", "/version"})


class Guard:
    """Lets requests with the service's token through. A team's first request makes its workspace.

    MLflow's default workspace reaches into the folders of all teams, so no request is let in there.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()
        self._teams: set[bytes] = set()
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request and hand it on."""
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            token = team = b""
            for name, value in scope["headers"]:
                if name == b"authorization":
                    token = value
                elif name == WORKSPACE:
                    team = value
            if not hmac.compare_digest(token, self._wanted):
                await refuse(send, 401, "UNAUTHENTICATED", "requests come through the gateway")
                return
            if team not in self._teams:
                problem = await self._make(team)
                if problem is not None:
                    await refuse(send, 400, "INVALID_PARAMETER_VALUE", problem)
                    return
        elif scope["type"] == "websocket":
            return
        await self._app(scope, receive, send)

    async def _make(self, team: bytes) -> str | None:
        """Make a workspace; why there can be none."""
        name = team.decode("latin1")
        if name in {"", "default"}:
            return "the gateway names the workspace of a team, and that is never the default one"
        async with self._making:
            try:
                await asyncio.to_thread(_make_workspace, name)
            except MlflowException as error:
                return str(error.message)
        self._teams.add(team)
        return None


def _make_workspace(name: str) -> None:
    store = _get_workspace_store()
    if name not in {workspace.name for workspace in store.list_workspaces()}:
        store.create_workspace(Workspace(name=name))
