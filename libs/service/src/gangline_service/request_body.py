"""A request's body within its size and its time.

The time is for all of it, not for each piece: a client has `GRACE_S`, and then as long as its
bytes take at `LEAST_BYTES_PER_S`. Only waiting for the client counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

GRACE_S = 10.0
LEAST_BYTES_PER_S = 64 << 10

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class BodyTooLarge(Exception):
    """The body is above its limit."""


class BodyTooSlow(Exception):
    """The body did not arrive in its time."""

    def __init__(self) -> None:
        super().__init__(
            f"the body did not arrive in time: send at least {LEAST_BYTES_PER_S:,} bytes a second"
        )


def bounded(
    receive: Receive, limit_bytes: int, clock: Callable[[], float] = time.monotonic
) -> Receive:
    """`receive` of an ASGI application, which raises BodyTooLarge and BodyTooSlow."""
    taken, waited_s, whole = 0, 0.0, False

    async def next_message() -> MutableMapping[str, Any]:
        nonlocal taken, waited_s, whole
        if whole:
            return await receive()
        began_s = clock()
        left_s = GRACE_S + taken / LEAST_BYTES_PER_S - waited_s
        try:
            message = await asyncio.wait_for(receive(), left_s)
        except TimeoutError:
            raise BodyTooSlow from None
        waited_s += clock() - began_s
        if message["type"] == "http.request":
            taken += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if taken > limit_bytes:
                raise BodyTooLarge
        return message

    return next_message
