"""Server-sent events: the text and the response that carries it.

An event's id is a cursor (cursor.py). Lines with ':' keep the connection alive. Streams of things
that end send the event `end`; a client that reads too slowly gets `dropped`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import structlog
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from gangline_gateway.follow import TooSlow
from gangline_gateway.problems import unavailable

log = structlog.get_logger(__name__)

MEDIA_TYPE = "text/event-stream"
SEND_TIMEOUT_S = 30.0
COMMENT = ": alive\n\n"


def event(kind: str, data: Any, cursor: str | None = None) -> str:
    """One event. Data is JSON on one line."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    head = f"id: {cursor}\n" if cursor is not None else ""
    return f"{head}event: {kind}\ndata: {text}\n\n"


class Streams:
    """Counts the open streams. Raises a 503 problem when there are too many."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.open = 0

    def response(self, parts: AsyncGenerator[str, None]) -> StreamingResponse:
        """The response of a stream."""
        if self.open >= self.at_once:
            raise unavailable("busy", f"{self.at_once} event streams are open; try again")
        return _EventStream(self._counted(parts))

    async def _counted(self, parts: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        self.open += 1
        try:
            yield ": stream\n\n"  # the headers go out at once
            async with aclosing(parts):
                async for part in parts:
                    yield part
        except TooSlow:
            yield event("dropped", {"reason": "read too slowly; come again with Last-Event-ID"})
        finally:
            self.open -= 1


class _EventStream(StreamingResponse):
    def __init__(self, content: AsyncGenerator[str, None]) -> None:
        super().__init__(content, media_type=MEDIA_TYPE)
        self._parts = content
        self.headers["cache-control"] = "no-store"
        self.headers["x-accel-buffering"] = "no"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the stream ends; a client that takes nothing for 30 s is cut off."""

        async def bounded(message: Message) -> None:
            await asyncio.wait_for(send(message), SEND_TIMEOUT_S)

        try:
            await super().__call__(scope, receive, bounded)
        except TimeoutError:
            log.info("stream cut: the client does not read")
        finally:
            await self._parts.aclose()
