"""Serves the application from a thread, on a socket that listens already."""

from __future__ import annotations

import asyncio
import socket
import threading

import uvicorn

from gangline_console.app import create_app
from gangline_console.client import Gateway
from gangline_console.config import Settings

_STOP_S = 2
_KEEP_ALIVE_S = 75
"""Longer than the gateway keeps a connection, so it never uses one that is being closed."""


class Server:
    """The HTTP server and its event loop."""

    def __init__(self, settings: Settings, listening: socket.socket) -> None:
        app = create_app(
            Gateway(settings.console_gateway_url), settings.service_token.get_secret_value()
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_STOP_S,
            )
        )
        self._socket = listening
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # Not `run`: signals belong to the process's main thread.
        asyncio.run(self._server.serve(sockets=[self._socket]))

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop answering; what is open is cut after 2 s."""
        self._server.should_exit = True
        self._thread.join(_STOP_S + 2.0)
