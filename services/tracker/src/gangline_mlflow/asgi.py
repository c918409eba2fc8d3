"""Small parts of an ASGI application."""

from __future__ import annotations

import json

from starlette.types import Message, Receive, Send


async def whole_body(receive: Receive) -> bytes:
    """The body of a request."""
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body that was read already."""
    is_given = False

    async def once() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return once


async def answer(send: Send, status: int, body: bytes) -> None:
    """Send JSON with the headers that MLflow's own answers have."""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"x-frame-options", b"SAMEORIGIN"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, status: int, code: str, message: str) -> None:
    """Send an error as MLflow's client reads it."""
    await answer(send, status, json.dumps({"error_code": code, "message": message}).encode())
