"""Server-sent events: the text and the response that carries it.

An event's id is a cursor (cursor.py). Lines with ':' keep the connection alive. A stream about a
job ends with the event `end`; a client that reads too slowly gets `dropped`. Every `CHECK_S` the
caller's token is checked again: a stream ends if it was revoked or changed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from functools import partial
from typing import Any

import structlog
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from gangline_gateway.follow import TooSlow
from gangline_gateway.problems import unavailable
from gangline_gateway.user_limits import UserSlots

log = structlog.get_logger(__name__)

MEDIA_TYPE = "text/event-stream"
SEND_TIMEOUT_S = 30.0
CHECK_S = 5.0
COMMENT = ": alive\n\n"

Parts = AsyncGenerator[str, None] | AsyncGenerator[str | bytes, None]


class NotAllowedError(Exception):
    """The caller of a stream may not read it any more."""


def event(kind: str, data: Any, cursor: str | None = None) -> str:
    """One event. Data is JSON on one line."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    head = f"id: {cursor}\n" if cursor is not None else ""
    return f"{head}event: {kind}\ndata: {text}\n\n"


class Streams:
    """Counts the open streams, in total and per user."""

    def __init__(self, at_once: int, per_user: int = 100) -> None:
        self.at_once = at_once
        self.open = 0
        self._users = UserSlots(per_user, "event streams")

    def response(self, parts: Parts, user: str) -> StreamingResponse:
        """The response of a stream; a 503 or 429 problem if too many are open."""
        return _EventStream(parts, partial(self._slot, user))

    @contextmanager
    def _slot(self, user: str) -> Iterator[None]:
        if self.open >= self.at_once:
            raise unavailable("busy", f"{self.at_once} event streams are open; try again")
        with self._users.hold(user):
            self.open += 1
            try:
                yield
            finally:
                self.open -= 1


async def _whole(parts: Parts) -> AsyncGenerator[str | bytes, None]:
    yield ": stream\n\n"  # sends the headers immediately
    try:
        async for part in parts:
            yield part
    except TooSlow:
        yield event("dropped", {"reason": "read too slowly; connect again with Last-Event-ID"})


class _EventStream(StreamingResponse):
    def __init__(
        self,
        parts: Parts,
        slot: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._parts, self._slot = parts, slot
        self._content = _whole(parts)
        super().__init__(self._content, media_type=MEDIA_TYPE)
        self.headers["cache-control"] = "no-store"
        self.headers["x-accel-buffering"] = "no"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends until the stream ends; a client that reads nothing for 30 s is disconnected."""
        checked = _checked(scope, send)

        async def bounded(message: Message) -> None:
            await asyncio.wait_for(checked(message), SEND_TIMEOUT_S)

        async with aclosing(self._parts), aclosing(self._content):
            with self._slot():
                try:
                    await super().__call__(scope, receive, bounded)
                except TimeoutError:
                    log.info("stream closed: the client does not read")
                except NotAllowedError:
                    log.info("stream closed: its token was revoked or changed")
                    await send({"type": "http.response.body", "body": b""})


def _checked(scope: Scope, send: Send) -> Send:
    """Sends nothing more after the caller has lost its rights. Raises NotAllowedError."""
    still_allowed: Callable[[], Awaitable[bool]] = scope["state"]["still_allowed"]
    loop = asyncio.get_running_loop()
    checked_s = loop.time()

    async def checked(message: Message) -> None:
        nonlocal checked_s
        if loop.time() - checked_s >= CHECK_S:
            if not await still_allowed():
                raise NotAllowedError
            checked_s = loop.time()
        await send(message)

    return checked
