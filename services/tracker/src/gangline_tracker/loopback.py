"""An HTTP server on 127.0.0.1, and who may talk to it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import socket
import threading

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request

from gangline_service.loopback import is_loopback


def is_local(request: Request) -> bool:
    """Whether the request names this machine and is no browser's.

    Browsers reach loopback by DNS rebinding, with the wrong Host, or from a page, with an Origin.
    """
    hosts = request.headers.getlist("host")
    name = hosts[0].partition(":")[0].lower() if len(hosts) == 1 else ""
    return is_loopback(name) and "origin" not in request.headers


def token_of(request: Request) -> str | None:
    """The token, from X-ClickHouse-Key, a bearer, or the password of HTTP basic."""
    key = request.headers.get("x-clickhouse-key")
    if key:
        return key
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(credentials, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return decoded.partition(":")[2]


class HttpServer:
    """Serves an application from a thread of its own on 127.0.0.1; port 0 takes a free one."""

    def __init__(self, app: Starlette, port: int = 0) -> None:
        # With the protocol named, asyncio sets TCP_NODELAY on what it accepts (52 ms otherwise).
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self.port = int(self._socket.getsockname()[1])
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_keep_alive=75,
                limit_concurrency=256,
                server_header=False,
            )
        )
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._socket.listen(128)
        self._thread.start()

    def close(self) -> None:
        """Stop answering; waits up to 5 s for what is being answered."""
        self._server.should_exit = True
        self._thread.join(5.0)

    def _run(self) -> None:
        # Not `run`: it installs signal handlers, which belong to the process's main thread.
        asyncio.run(self._server.serve(sockets=[self._socket]))
