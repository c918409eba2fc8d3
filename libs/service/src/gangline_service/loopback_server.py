"""Serves an application on a loopback port to the gateway, from a thread of its own.

The port listens before the web server is loaded, so a service may wait for its first request.
"""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Callable
from typing import Any

from .loopback import LOOPBACK

_BACKLOG = 512
_STOP_S = 2
_KEEP_ALIVE_S = 75
"""Longer than the gateway keeps a connection, so it never uses one that is being closed."""


def listen(port: int, variable: str) -> socket.socket:
    """A socket that listens; port 0 takes a free one. `variable`: the setting of the port.

    Raises SystemExit if the port cannot be had.
    """
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
    except OSError as error:
        listening.close()
        raise SystemExit(
            f"cannot listen on {LOOPBACK}:{port} ({error.strerror}): set {variable} to a free "
            "port (0 takes one)"
        ) from None
    listening.listen(_BACKLOG)
    return listening


def has_connection(listening: socket.socket) -> bool:
    """Whether a connection waits to be accepted; waits up to half a second for one."""
    return bool(select.select([listening], [], [], 0.5)[0])


class LoopbackServer:
    """Serves an ASGI application on a socket that listens already."""

    def __init__(
        self,
        app: Any,
        listening: socket.socket,
        new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        """Serve at once. `new_loop` makes the event loop; None: asyncio's own."""
        import uvicorn

        config = uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_STOP_S,
        )
        self._server = uvicorn.Server(config)
        self._socket = listening
        self._new_loop = new_loop
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            # Not `run`: signals belong to the process's main thread.
            runner.run(self._server.serve(sockets=[self._socket]))

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop answering; what is open is cut after 2 s."""
        self._server.should_exit = True
        self._thread.join(_STOP_S + 2.0)
