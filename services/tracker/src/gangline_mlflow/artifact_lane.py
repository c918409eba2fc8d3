"""Uploads and downloads of artifacts, straight between client and object store.

MLflow would keep a copy of each file on this machine's disk, and knows no ranges.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from mlflow.exceptions import MlflowException
from mlflow.utils.uri import validate_path_is_safe
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gangline_mlflow.artifact_repo import headers_of, refusals
from gangline_mlflow.artifacts import Artifacts, owned
from gangline_mlflow.asgi import refuse
from gangline_mlflow.bodies import Disconnected, RequestBody, Span, span_of
from gangline_mlflow.guard import WORKSPACE

_ROUTE = re.compile(r"/(?:ajax-)?api/2\.0/mlflow-artifacts/artifacts/(.*)", re.DOTALL)
_UPLOADS_PER_TEAM = 8
"""At once; further ones wait. Each holds up to 40 MB, the parts on their way to S3."""
_SMALL_BYTES = 1 << 20
"""Uploads up to here do not wait for others."""
_UPLOADS, _READS = 256, 64
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Opened:
    """A file to send; without a span, it has none of the bytes that were asked for."""

    size_bytes: int
    span: Span | None = None
    chunks: Iterator[bytes] = field(default_factory=lambda: iter(()))


class ArtifactLane:
    """An ASGI application before MLflow's; belongs to one event loop."""

    def __init__(self, app: ASGIApp, artifacts: Artifacts) -> None:
        self._app, self._artifacts, self._store = app, artifacts, artifacts.store
        self._slots: dict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_UPLOADS_PER_TEAM)
        )
        self._uploads, self._reads = CapacityLimiter(_UPLOADS), CapacityLimiter(_READS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        found = _ROUTE.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if found is None or scope["method"] not in {"GET", "HEAD", "PUT"}:
            await self._app(scope, receive, send)
            return
        body = RequestBody(receive, asyncio.get_running_loop())
        headers = Headers(scope=scope)
        team = headers.get(WORKSPACE.decode(), "")
        try:
            with refusals():
                key = _key(team, found[1])
                if scope["method"] == "PUT":
                    await self._put(team, key, body, headers)
                else:
                    file = await self._opened(key, headers)
        except MlflowException as error:
            await body.drain()
            await refuse(send, error.get_http_status_code(), error.error_code, error.message)
        except Disconnected:
            return
        else:
            if scope["method"] == "PUT":
                await _head(send, 200, {"content-length": "0"}, last=True)
            else:
                await self._send(file, key, scope["method"], receive, send)

    async def _put(self, team: str, key: str, body: RequestBody, headers: Headers) -> None:
        length = headers.get("content-length")
        size = None if length is None else int(length)
        is_small = size is not None and size <= _SMALL_BYTES
        async with nullcontext() if is_small else self._slots[team]:
            await to_thread.run_sync(self._artifacts.put, key, body, size, limiter=self._uploads)

    async def _opened(self, key: str, headers: Headers) -> _Opened:
        size = (await self._read(lambda: self._store.head(key))).size_bytes
        # Answers have no validator, so a condition on one cannot hold.
        span = span_of(None if "if-range" in headers else headers.get("range"), size)
        if span is None:
            return _Opened(size)
        start = span.start
        return _Opened(size, span, await self._read(lambda: self._store.stream(key, start=start)))

    async def _send(
        self, file: _Opened, key: str, method: str, receive: Receive, send: Send
    ) -> None:
        span = file.span
        if span is None:
            headers = {"content-range": f"bytes */{file.size_bytes}", "content-length": "0"}
            await _head(send, 416, headers, last=True)
            return
        only_head = method == "HEAD"
        status = 206 if span.partial else 200
        await _head(send, status, headers_of(key, span), last=only_head)
        if only_head:
            return
        left = span.length
        gone = asyncio.ensure_future(_gone(receive))
        try:
            while left > 0 and not gone.done():
                chunk = await self._read(lambda: next(file.chunks, b""))
                if not chunk:
                    break  # replaced by a smaller one meanwhile: the connection is cut
                await send({"type": "http.response.body", "body": chunk[:left], "more_body": True})
                left -= len(chunk)
        finally:
            gone.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _read(self, ask: Callable[[], T]) -> T:
        return await to_thread.run_sync(ask, limiter=self._reads)


def _key(team: str, path: str) -> str:
    """The store's key, by MLflow's rules for paths. Raises MlflowException, InvalidKey."""
    safe = validate_path_is_safe(path)
    if not safe.startswith("workspaces/"):
        safe = f"workspaces/{team}/{safe}"
    return owned(team, safe)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _head(send: Send, status: int, headers: dict[str, str], *, last: bool) -> None:
    raw = [(name.encode(), value.encode("latin1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    if last:
        await send({"type": "http.response.body", "body": b""})
