"""A body has a size and a time, and its pieces gain none."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from gangline_service.request_body import (
    GRACE_S,
    LEAST_BYTES_PER_S,
    BodyTooLarge,
    BodyTooSlow,
    bounded,
)


class Client:
    """Sends pieces of so many bytes, each after so many seconds of a clock of its own."""

    def __init__(self, piece: int, every_s: float, pieces: int) -> None:
        self.now_s = 0.0
        self.sent = 0
        self._piece, self._every_s, self._pieces = piece, every_s, pieces

    async def receive(self) -> MutableMapping[str, Any]:
        self.now_s += self._every_s
        self.sent += 1
        more = self.sent < self._pieces
        return {"type": "http.request", "body": b"x" * self._piece, "more_body": more}


def read(client: Client, limit: int = 1 << 30) -> int:
    async def all_of_it() -> int:
        receive, size = bounded(client.receive, limit, lambda: client.now_s), 0
        while True:
            message = await receive()
            size += len(message["body"])
            if not message["more_body"]:
                return size

    return asyncio.run(all_of_it())


def test_a_body_that_trickles_in_is_given_up() -> None:
    client = Client(piece=1, every_s=1.0, pieces=10_000)
    with pytest.raises(BodyTooSlow, match="bytes a second"):
        read(client)
    assert client.now_s <= GRACE_S + 1


def test_a_body_at_the_least_rate_arrives() -> None:
    assert read(Client(LEAST_BYTES_PER_S, every_s=1.0, pieces=50)) == 50 * LEAST_BYTES_PER_S


def test_a_body_above_its_limit_is_cut_off() -> None:
    client = Client(piece=1000, every_s=0.0, pieces=100)
    with pytest.raises(BodyTooLarge):
        read(client, limit=10_000)
    assert client.sent == 11
