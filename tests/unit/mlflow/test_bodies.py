"""Ranges of bytes, and bodies that another thread reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from starlette.types import Message

from gangline_mlflow.bodies import Disconnected, RequestBody, Span, span_of


@pytest.mark.parametrize(
    ("asked", "size", "found"),
    [
        (None, 10, (0, 10)), ("bytes=0-0", 10, (0, 1)), ("bytes=3-", 10, (3, 7)),
        ("bytes=3-99", 10, (3, 7)), ("bytes=-4", 10, (6, 4)), ("bytes=-99", 10, (0, 10)),
        ("bytes=-0", 10, None), ("bytes=10-", 10, None), ("bytes=0-", 0, None), (None, 0, (0, 0)),
        ("bytes=5-4", 10, (0, 10)), ("bytes=1-2,4-5", 10, (0, 10)), ("bytes=-", 10, (0, 10)),
        ("lines=1-2", 10, (0, 10)), ("bytes=a-b", 10, (0, 10)), ("bytes=1", 10, (0, 10)),
        (f"bytes=0-{'9' * 5000}", 10, (0, 10)), (f"bytes=0-{'9' * 18}", 10, (0, 10)),
    ],
)  # fmt: skip
def test_ranges(asked: str | None, size: int, found: tuple[int, int] | None) -> None:
    assert span_of(asked, size) == (None if found is None else Span(*found, size))


def read_all(messages: Iterable[Message], size: int) -> list[bytes]:
    """What a thread reads of a request's body, in pieces of up to `size` bytes."""
    left = iter(messages)

    async def receive() -> Message:
        return next(left)

    async def read() -> list[bytes]:
        body = RequestBody(receive, asyncio.get_running_loop())
        return await asyncio.to_thread(lambda: list(iter(lambda: body.read(size), b"")))

    return asyncio.run(read())


def message(body: bytes, *, more: bool) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_is_read_to_its_end() -> None:
    sent = [message(b"abc", more=True), message(b"", more=True), message(b"defg", more=False)]
    assert read_all(sent, 2) == [b"ab", b"cd", b"ef", b"g"]
    assert read_all([message(b"", more=False)], 2) == []


def test_a_client_that_goes_ends_the_reading() -> None:
    sent = [message(b"abc", more=True), {"type": "http.disconnect"}]
    with pytest.raises(Disconnected):
        read_all(sent, 2)
