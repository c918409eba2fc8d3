"""Bodies of OpenTelemetry's traces, as MLflow gets them; MLflow's answers are in integration."""

from __future__ import annotations

import asyncio
import gzip
import threading
import zlib

import pytest
from starlette.types import Message, Receive, Scope, Send

from gangline_mlflow.asgi import answer, whole_body
from gangline_mlflow.trace_lane import TraceLane

SPANS = b"spans" * 100
RAW = zlib.compressobj(wbits=-zlib.MAX_WBITS)


def asked(body: bytes, encoding: str, path: str = "/v1/traces") -> tuple[int, list[object]]:
    """The status, and what MLflow saw: the body, its headers and whether in another thread."""
    seen: list[object] = []
    here, sent = threading.get_ident(), list[Message]()

    async def mlflow(scope: Scope, receive: Receive, send: Send) -> None:
        names = {name.decode() for name, _ in scope["headers"]}
        seen.extend([await whole_body(receive), names, threading.get_ident() != here])
        await answer(send, 200, b"{}")

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"content-length", b"%d" % len(body)), (b"content-encoding", encoding.encode())]
    scope = {"type": "http", "path": path, "headers": headers if encoding else headers[:1]}
    asyncio.run(TraceLane(mlflow, most_bytes=len(SPANS))(scope, receive, send))
    return sent[0]["status"], seen


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (SPANS, ""),
        (gzip.compress(SPANS), "GZIP"),
        (zlib.compress(SPANS), "deflate"),
        (RAW.compress(SPANS) + RAW.flush(), "deflate"),
    ],
    ids=["plain", "gzip", "zlib", "raw"],
)
def test_mlflow_reads_the_plain_body_in_a_thread(body: bytes, encoding: str) -> None:
    assert asked(body, encoding) == (200, [SPANS, {"content-length"}, True])


def test_an_encoding_that_mlflow_refuses_stays() -> None:
    assert asked(b"x", "br") == (200, [b"x", {"content-length", "content-encoding"}, True])


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (gzip.compress(SPANS + b"!"), "gzip", 413),
        (gzip.compress(SPANS + b"!")[:-1], "gzip", 413),
        (zlib.compress(SPANS + b"!"), "deflate", 413),
        (gzip.compress(SPANS)[:-1], "gzip", 400),
        (b"x", "deflate", 400),
    ],
    ids=["large gzip", "large cut gzip", "large zlib", "cut gzip", "no zlib"],
)
def test_a_large_or_broken_body_does_not_reach_mlflow(
    body: bytes, encoding: str, status: int
) -> None:
    assert asked(body, encoding) == (status, [])


def test_other_requests_stay_on_the_event_loop() -> None:
    assert asked(SPANS, "gzip", "/api/2.0/x")[1][2] is False
