"""The first part of the server: it checks the token, and says what the server can do.

It answers before MLflow is loaded. MLflow's client begins with `server-info`, waits 3 s for it and
does not ask again, while loading takes 5 s or more. All other requests wait until MLflow is there.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import threading
from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from gangline_mlflow.asgi import answer, refuse

OPEN = frozenset({"/health", "/version"})
"""Answered without a token."""
_CLIENTS = "/api/3.0/mlflow/server-info"
_PAGES = "/ajax-api/3.0/mlflow/server-info"


def server_info(*, presigned: bool) -> dict[str, object]:
    """The answer of MLflow's `build_server_info_payload` for this server."""
    return {
        "store_type": "SqlStore",
        "workspaces_enabled": True,
        "trace_archival_enabled": False,
        "multipart_uploads_enabled": presigned,
        "multipart_downloads_enabled": presigned,
        "presigned_upload_run_id_supported": True,
        "presigned_upload_model_id_supported": True,
        "features_enabled": {"gateway": False},
    }


class Front:
    """An ASGI application; `open` gives it what serves the other requests."""

    def __init__(self, token: str, info: Mapping[str, object]) -> None:
        self.asked = threading.Event()
        """The first request has come; if it could be answered here, its answer is sent."""
        self._wanted = f"Bearer {token}".encode()
        # MLflow's pages would ask which workspace to show, and add it to each link. An address
        # of the gateway belongs to one team already.
        self._info = {_CLIENTS: info, _PAGES: {**info, "workspaces_enabled": False}}
        self._lock = threading.Lock()
        self._app: ASGIApp | None = None
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def open(self, app: ASGIApp) -> None:
        """MLflow is loaded. May be called from any thread."""
        with self._lock:
            self._app = app
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request or hand it on."""
        if scope["type"] != "http":
            return
        try:
            if await self._answered(scope, send):
                return
        finally:
            self.asked.set()
        await (await self._opened())(scope, receive, send)

    async def _answered(self, scope: Scope, send: Send) -> bool:
        path, headers = scope["path"], dict(scope["headers"])
        if path in OPEN:
            return False
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._wanted):
            await refuse(send, 401, "UNAUTHENTICATED", "requests come through the gateway")
            return True
        if scope["method"] != "GET" or path not in self._info:
            return False
        await answer(send, 200, json.dumps(self._info[path]).encode())
        return True

    async def _opened(self) -> ASGIApp:
        while True:
            with self._lock:
                if self._app is not None:
                    return self._app
                event = asyncio.Event()
                self._waiting.append((asyncio.get_running_loop(), event))
            await event.wait()
