"""Traces by OpenTelemetry's protocol: decompressed within a limit, and read in a thread.

MLflow would decompress a body to any size, and read it on the event loop: a second for each MiB.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gangline_mlflow.asgi import refuse, replayed, whole_body

_PATH = "/v1/traces"
MOST_BYTES = 32 << 20
"""The gateway's limit of a body."""
_ENCODINGS = frozenset({"gzip", "deflate"})
"""MLflow knows these; it refuses all others."""
_AT_ONCE = 2
T = TypeVar("T")


class TraceLane:
    """An ASGI application before MLflow's; belongs to one event loop."""

    def __init__(self, app: ASGIApp, most_bytes: int = MOST_BYTES) -> None:
        self._app, self._most = app, most_bytes
        self._threads = CapacityLimiter(_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request about traces, or hand it on."""
        if scope["type"] != "http" or scope["path"] != _PATH:
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        encoding = headers.pop(b"content-encoding", b"").decode("latin1").lower()
        body = await whole_body(receive)
        if encoding in _ENCODINGS:
            try:
                body = await self._in_thread(_plain, body, encoding, self._most)
            except (OSError, EOFError, zlib.error):
                await refuse(send, 400, "BAD_REQUEST", f"the body is not {encoding}")
                return
            headers[b"content-length"] = str(len(body)).encode()
            scope = {**scope, "headers": [*headers.items()]}
        if len(body) > self._most:
            problem = f"the body is above {self._most:,} bytes without its Content-Encoding"
            await refuse(send, 413, "BAD_REQUEST", problem)
            return
        for message in await self._in_thread(asyncio.run, self._asked(scope, body)):
            await send(message)

    async def _in_thread(self, work: Callable[..., T], *given: Any) -> T:
        return await to_thread.run_sync(work, *given, limiter=self._threads)

    async def _asked(self, scope: Scope, body: bytes) -> list[Message]:
        """MLflow's answer, on the event loop of the thread."""
        sent: list[Message] = []

        async def nothing() -> Message:
            return await asyncio.Future()

        async def keep(message: Message) -> None:
            sent.append(message)

        await self._app(scope, replayed(body, nothing), keep)
        return sent


def _plain(body: bytes, encoding: str, most: int) -> bytes:
    """The body without its encoding, at most a byte above the limit.

    Raises OSError, EOFError and zlib.error for a broken one.
    """
    if encoding == "gzip":
        return gzip.GzipFile(fileobj=io.BytesIO(body)).read(most + 1)
    try:
        return _inflated(body, zlib.MAX_WBITS, most)
    except zlib.error:  # some clients send it without a header
        return _inflated(body, -zlib.MAX_WBITS, most)


def _inflated(body: bytes, window: int, most: int) -> bytes:
    reader = zlib.decompressobj(window)
    plain = reader.decompress(body, most + 1)
    if len(plain) <= most and not reader.eof:
        raise EOFError
    return plain
