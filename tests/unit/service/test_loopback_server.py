"""The port for the gateway: taken ones, waiting for a connection, serving from a thread."""

from __future__ import annotations

import socket

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gangline_service.loopback_server import LoopbackServer, has_connection, listen


def test_a_taken_port_names_the_setting_to_change() -> None:
    free = "set GANGLINE_X_PORT to a free port"
    with listen(0, "GANGLINE_X_PORT") as first, pytest.raises(SystemExit, match=free):
        listen(first.getsockname()[1], "GANGLINE_X_PORT")


def test_the_connection_that_was_waited_for_is_answered() -> None:
    async def hello(_: object) -> PlainTextResponse:
        return PlainTextResponse("hello")

    with listen(0, "GANGLINE_X_PORT") as listening:
        assert not has_connection(listening)
        with socket.create_connection(listening.getsockname()) as waiting:
            assert has_connection(listening)
            server = LoopbackServer(Starlette(routes=[Route("/", hello)]), listening)
            try:
                waiting.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                assert b"hello" in waiting.makefile("rb").read()
                assert server.alive
                assert httpx.get(f"http://127.0.0.1:{listening.getsockname()[1]}/").text == "hello"
            finally:
                server.close()
        assert not server.alive
