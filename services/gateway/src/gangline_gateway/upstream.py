"""Hands requests on to another HTTP server of this installation, and its answers back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

import aiohttp
from starlette.types import Receive, Scope, Send
from yarl import URL

WHOLE_BYTES = 1 << 20
"""Bodies up to here are handed on in one piece."""
_DROPPED = frozenset(
    {
        # of a connection
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"host", b"expect",
        # the gateway has checked them, or sets its own
        b"authorization", b"origin", b"referer", b"cookie", b"set-cookie", b"x-real-ip",
        b"forwarded", b"x-content-type-options",
    }
)  # fmt: skip
_FORWARDED = b"x-forwarded-"

Headers = list[tuple[str, str]]


class NoUpstreamError(Exception):
    """The server does not answer."""


@dataclass
class Upstream:
    """One server. Belongs to one event loop."""

    url: str
    connect_s: float = 5.0
    answer_s: float = 120.0
    """The longest silence of an answer."""

    def __post_init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def hand_on(
        self,
        method: str,
        target: str,
        headers: Headers,
        body: bytes | AsyncIterator[bytes],
        send: Send,
    ) -> None:
        """Ask, and send the answer. `target`: path and query, quoted.

        Raises NoUpstreamError, and what `body` raises.
        """
        whole, sent = isinstance(body, bytes), _Sent(body)
        asked = [item for item in headers if not whole or item[0] != "content-length"]
        url = URL(f"{self.url}{target}", encoded=True)
        try:
            response = await self._client().request(
                method, url, headers=asked, data=sent.data(), allow_redirects=False
            )
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            if sent.error is not None:
                raise sent.error from None
            raise NoUpstreamError(repr(error)[:300]) from None
        async with response:
            await _hand_back(response, send)

    async def close(self) -> None:
        """Close its connections."""
        if self._session is not None:
            await self._session.close()

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # No limit: the gateway bounds each user's requests. Slow uploads of one must not
                # hold up the others.
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self.connect_s, sock_read=self.answer_s
                ),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("user-agent", "accept", "accept-encoding", "content-type"),
            )
        return self._session


@dataclass
class _Sent:
    """A body on its way. aiohttp shows what it raises as an error of the connection."""

    body: bytes | AsyncIterator[bytes]
    error: Exception | None = None

    def data(self) -> bytes | AsyncIterator[bytes] | None:
        """The body as aiohttp takes it."""
        return self.body or None if isinstance(self.body, bytes) else self._pieces(self.body)

    async def _pieces(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            async for piece in body:
                yield piece
        except Exception as error:
            self.error = error
            raise


def headers_of(scope: Scope, *without: str) -> Headers:
    """The headers of a request that may be handed on, except those named."""
    return [
        (name.decode("latin1"), value.decode("latin1"))
        for name, value in scope["headers"]
        if _passes(name) and name.decode("latin1") not in without
    ]


def _passes(name: bytes) -> bool:
    return name not in _DROPPED and not name.startswith(_FORWARDED)


async def whole_body(receive: Receive) -> bytes:
    """The body in one piece. Raises ConnectionResetError if the client leaves."""
    return b"".join([piece async for piece in pieces(receive)])


async def pieces(receive: Receive) -> AsyncIterator[bytes]:
    """The body as it comes. Raises ConnectionResetError if the client leaves."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body"):
            return


async def answer(
    send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
) -> None:
    """Send an answer in one piece."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def _hand_back(response: aiohttp.ClientResponse, send: Send) -> None:
    headers = [
        (name.lower(), value) for name, value in response.raw_headers if _passes(name.lower())
    ]
    length = response.content_length
    if length is not None and length <= WHOLE_BYTES:
        try:
            body = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:  # it ended while it answered
            raise NoUpstreamError(repr(error)[:300]) from None
        await answer(send, response.status, headers, body)
        return
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    async for piece in response.content.iter_any():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
