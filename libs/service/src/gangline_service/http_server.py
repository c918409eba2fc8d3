"""An HTTP server in a thread: uvicorn, and the limits that keep slow clients from others."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import threading
from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn

from .connections import ConnectionLimits, Connections
from .http_protocol import HEAD_S, SCOPE_KEY, Guard, GuardedProtocol

# Above what applications answer with 431; beyond this the server ends the connection (400).
_HEADER_BYTES = 256 << 10
_STOP_S = 2
_KEEP_ALIVE_S = 30
_THREADS = 32  # of `asyncio.to_thread`; the default is 4 and one for each core


class HttpServer:
    """Serves an ASGI application from a thread of its own.

    `tls`: certificate and key, as PEM files. `head_s`: the longest time for a handshake and a
    request's head. The application calls `proven` to name a connection's user.
    """

    def __init__(
        self,
        host: str,
        port: int = 0,
        *,
        limits: ConnectionLimits | None = None,
        head_s: float = HEAD_S,
    ) -> None:
        """Bind, so that the port is known before anything is served. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # With the protocol named, asyncio sets TCP_NODELAY on what it accepts.
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, port))
        self.port = int(self._socket.getsockname()[1])
        self._limits = limits
        self._head_s = head_s
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self, app: Any, *, tls: tuple[Path, Path] | None = None) -> None:
        """Begin to answer. Raises OSError when the certificate or its key cannot be used."""
        guard = Guard(Connections(self._limits), _context(tls), self._head_s)
        _raise_descriptors()
        self._socket.listen(512)
        config = uvicorn.Config(
            app,
            http=cast("type[asyncio.Protocol]", partial(GuardedProtocol, guard=guard)),
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=_HEADER_BYTES,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_STOP_S,
        )
        server = self._server = uvicorn.Server(config)

        async def serve() -> None:
            threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="http")
            asyncio.get_running_loop().set_default_executor(threads)
            # Not `run`: signals belong to the process's main thread.
            await server.serve(sockets=[self._socket])

        run = partial(asyncio.run, serve())
        self._thread = threading.Thread(target=run, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering; what is open is cut after 2 s."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(_STOP_S + 2.0)
        self._socket.close()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()


def proven(scope: MutableMapping[str, Any], user: str) -> bool:
    """The request showed this user's token. False: no room for its connection."""
    connection = scope.get(SCOPE_KEY)
    return connection is None or bool(connection.prove(user))


def _context(tls: tuple[Path, Path] | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*tls)
    return context


def _raise_descriptors() -> None:
    """Connections need descriptors: allow as many as the system lets this process have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
