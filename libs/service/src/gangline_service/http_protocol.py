"""uvicorn's HTTP/1.1 protocol with added deadlines, for clients that are slow on purpose.

1. A TLS handshake and a request's head must be there within `head_s`.
2. The rest of a body must be there within `DRAIN_S` after the answer.
3. A client must read some of an answer within `SEND_S`.

Then the connection ends. The application limits the time of a body (request_body.py), and
`Connections` limits the number of connections. Each is counted as soon as TCP accepted it. The
handshake is done here, because uvicorn's server would count a connection only after it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .connections import Connections

HEAD_S = 10.0
DRAIN_S = 5.0
SEND_S = 60.0
SCOPE_KEY = "gangline.connection"


@dataclass(frozen=True)
class Guard:
    """The shared state of one server's connections."""

    connections: Connections = field(default_factory=Connections)
    tls: ssl.SSLContext | None = None
    head_s: float = HEAD_S


class GuardedProtocol(H11Protocol):
    """One connection. The application finds it in its scope under `SCOPE_KEY`."""

    def __init__(self, *, guard: Guard, **settings: Any) -> None:
        super().__init__(**settings)
        self._guard = guard
        self._raw: asyncio.Transport | None = None
        self._early = b""
        self._ready = False  # TLS is spoken, where it is
        self._handshake: asyncio.Task[None] | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._sending: asyncio.TimerHandle | None = None
        self.app = self._with_connection(self.app)

    def prove(self, user: str) -> bool:
        """The client showed this user's token. False: no room for more connections."""
        return self._guard.connections.prove(self, user)

    @property
    def idle(self) -> bool:
        """Whether no request is being read or answered."""
        return not self._answering and self._reading is None

    def end(self) -> None:
        """Close it at once."""
        if self._handshake is not None:
            self._handshake.cancel()
        if self._raw is not None:
            self._raw.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it, then shake hands where TLS is spoken."""
        self._raw = transport
        peer = transport.get_extra_info("peername")
        self._guard.connections.opened(self, str(peer[0]) if peer else "")
        if transport.is_closing():
            return
        if self._guard.tls is None:
            self._made(transport)
            return
        transport.pause_reading()  # what comes is the handshake's
        self._handshake = self.loop.create_task(self._shake_hands(transport, self._guard.tls))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._guard.connections.closed(self)
        self._stop_reading_timer()
        self.resume_writing()
        if self._ready:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; the first ones of a request start its time."""
        if not self._ready:  # it came with the end of the handshake
            self._early += data
            return
        if not self._answering and self._reading is None:
            self._read_within(self._guard.head_s)
        super().data_received(data)
        if self._answering:
            self._stop_reading_timer()

    def on_response_complete(self) -> None:
        """The answer is out: what is left of the request is read and thrown away."""
        super().on_response_complete()
        if not self._answering and self.conn.their_state is h11.SEND_BODY:
            self._read_within(DRAIN_S)

    def pause_writing(self) -> None:
        """The client does not read."""
        if self._ready:
            super().pause_writing()
        self._sending = self.loop.call_later(SEND_S, self.end)

    def resume_writing(self) -> None:
        """It does again."""
        if self._ready:
            super().resume_writing()
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._ready = True
        self._read_within(self._guard.head_s)
        if self._early:
            early, self._early = self._early, b""
            self.data_received(early)

    async def _shake_hands(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        try:
            secure = await self.loop.start_tls(
                transport,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=self._guard.head_s,
                ssl_shutdown_timeout=DRAIN_S,
            )
        except (OSError, asyncio.CancelledError):
            secure = None
        self._handshake = None
        if secure is None or secure.is_closing():
            self._guard.connections.closed(self)
            transport.abort()
            return
        self._made(secure)

    def _read_within(self, seconds: float) -> None:
        self._stop_reading_timer()
        self._reading = self.loop.call_later(seconds, self.end)

    def _stop_reading_timer(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _with_connection(self, app: Any) -> Callable[[Any, Any, Any], Awaitable[None]]:
        async def run(scope: Any, receive: Any, send: Any) -> None:
            scope[SCOPE_KEY] = self
            await app(scope, receive, send)

        return run
