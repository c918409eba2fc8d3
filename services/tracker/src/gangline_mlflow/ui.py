"""MLflow's pages see one workspace: an address of the gateway belongs to one team already.

They would ask which of the server's workspaces to show, and add it to each link.
"""

from __future__ import annotations

import json

from anyio import to_thread
from mlflow.server.handlers import build_server_info_payload
from mlflow.utils.server_info import SERVER_INFO_WORKSPACES_ENABLED
from starlette.types import ASGIApp, Receive, Scope, Send

from gangline_mlflow.asgi import answer

_ASKED = "/ajax-api/3.0/mlflow/server-info"
"""The pages ask here, clients below /api."""


class OneWorkspace:
    """An ASGI application before MLflow's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what the server can do, or hand the request on."""
        if scope["type"] != "http" or (scope["method"], scope["path"]) != ("GET", _ASKED):
            await self._app(scope, receive, send)
            return
        found = await to_thread.run_sync(build_server_info_payload)
        shown = {**found, SERVER_INFO_WORKSPACES_ENABLED: False}
        await answer(send, 200, json.dumps(shown).encode())
