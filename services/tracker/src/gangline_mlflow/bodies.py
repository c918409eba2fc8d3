"""Bodies of requests and answers that are larger than memory: streams and ranges of bytes."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from starlette.types import Receive

_GATHERED_BYTES = 1 << 20
_SILENT_S = 120.0
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})$")


class Disconnected(Exception):
    """The client has gone before its body was whole, or sends nothing any more."""


class RequestBody:
    """A request's body as a file that another thread reads; the client waits for the reader."""

    def __init__(self, receive: Receive, loop: asyncio.AbstractEventLoop) -> None:
        self._receive, self._loop = receive, loop
        self._rest = memoryview(b"")
        self._ended = False

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end. Raises Disconnected."""
        if not self._rest and not self._ended:
            asked = asyncio.run_coroutine_threadsafe(self._gather(), self._loop)
            try:
                self._rest = memoryview(asked.result(_SILENT_S))
            except TimeoutError:
                asked.cancel()
                raise Disconnected from None
        piece, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return piece

    async def drain(self) -> None:
        """Read the rest and forget it: clients read an answer only when they have sent all."""
        while not self._ended:
            await self._gather()

    async def _gather(self) -> bytes:
        pieces = []
        missing = _GATHERED_BYTES
        while missing > 0 and not self._ended:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            piece = message.get("body", b"")
            pieces.append(piece)
            missing -= len(piece)
            self._ended = not message.get("more_body")
        return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a file that a request asks for."""

    start: int
    length: int
    whole: int
    """The file's size."""

    @property
    def partial(self) -> bool:
        """Whether they are not all of the file's."""
        return self.length != self.whole

    @property
    def content_range(self) -> str:
        """The header Content-Range."""
        return f"bytes {self.start}-{self.start + self.length - 1}/{self.whole}"


def span_of(asked: str | None, size_bytes: int) -> Span | None:
    """The bytes that the header Range asks for, None if the file has none of them.

    Several ranges, and one that cannot be read, mean the whole file, as HTTP allows.
    """
    whole = Span(0, size_bytes, size_bytes)
    found = None if asked is None else _RANGE.match(asked.strip())
    if found is None or found[0] == "bytes=-":
        return whole
    if not found[1]:  # the last bytes
        length = min(int(found[2]), size_bytes)
        return Span(size_bytes - length, length, size_bytes) if length else None
    start = int(found[1])
    end = min(int(found[2]) if found[2] else size_bytes - 1, size_bytes - 1)
    if found[2] and int(found[2]) < start:
        return whole
    return Span(start, end - start + 1, size_bytes) if start < size_bytes else None
