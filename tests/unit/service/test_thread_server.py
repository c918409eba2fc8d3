"""How many connections a server of threads serves at once, and that each gives its place back."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from gangline_service.thread_server import ThreadServer

DEADLINE_S = 30.0


class Waits(BaseHTTPRequestHandler):
    """Answers once it is released."""

    server: Server

    def do_GET(self) -> None:
        self.server.arrived(self.connection)
        self.server.asked.set()
        assert self.server.released.wait(DEADLINE_S)
        self.send_response_only(200)
        self.end_headers()


class Server(ThreadServer):
    def __init__(self, port: int = 0, at_once: int = 1) -> None:
        self.now_s = 0.0
        super().__init__(
            ("127.0.0.1", port), Waits, name="test", close_within_s=0.05, at_once=at_once,
            arrive_s=5, clock=lambda: self.now_s,
        )  # fmt: skip
        self.asked, self.released = threading.Event(), threading.Event()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    made.start()
    yield made
    made.released.set()
    made.close()


def ask(server: Server) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), DEADLINE_S)
    connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
    return connection


def answer(connection: socket.socket) -> bytes:
    """All of it; b"" when the server hung up."""
    with connection, connection.makefile("rb") as said:
        return said.read()


def answered(server: Server) -> bytes:
    """What is said once there is a place: the one before leaves it just after its answer."""
    while (found := answer(ask(server))).startswith(b"HTTP/1.0 503"):
        pass
    return found


def test_a_connection_beyond_the_bound_may_come_again(server: Server) -> None:
    first = ask(server)
    assert server.asked.wait(DEADLINE_S)
    beyond = socket.create_connection(("127.0.0.1", server.port), DEADLINE_S)
    assert answer(beyond).startswith(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\n")
    server.released.set()
    assert answer(first).startswith(b"HTTP/1.0 200")
    assert answered(server).startswith(b"HTTP/1.0 200")


def test_a_thread_that_could_not_be_started_takes_no_place(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    server.released.set()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        assert answer(socket.create_connection(("127.0.0.1", server.port), DEADLINE_S)) == b""
    assert answer(ask(server)).startswith(b"HTTP/1.0 200")


def test_the_next_one_listens_at_the_same_port_at_once(server: Server) -> None:
    server.released.set()
    connection = ask(server)
    assert answer(connection).startswith(b"HTTP/1.0 200")  # it hung up first: its end lingers
    server.close()
    Server(server.port).close()


def slow(server: Server) -> socket.socket:
    """A connection that never sends all of its request."""
    connection = socket.create_connection(("127.0.0.1", server.port), DEADLINE_S)
    connection.sendall(b"GET / HTTP/1.0\r\nX-Slow: ")
    return connection


def test_a_request_that_trickles_in_is_cut_in_its_time(server: Server) -> None:
    connection = slow(server)
    connection.settimeout(0.1)
    for _ in range(300):
        server.now_s += 1.0
        with contextlib.suppress(TimeoutError):
            assert connection.recv(1) == b""
            break
        connection.sendall(b"a")  # a piece gains no time
    else:
        pytest.fail("it was never cut")
    connection.close()


def test_slow_connections_make_room_for_one_that_asks() -> None:
    server = Server(at_once=4)
    server.released.set()
    server.start()
    try:
        waiting = [slow(server) for _ in range(20)]
        for _ in range(3):
            assert answer(ask(server)).startswith(b"HTTP/1.0 200")
        assert answer(waiting[0]) == b"", "the oldest one made room"
        for connection in waiting:
            connection.close()
    finally:
        server.close()


def test_a_request_that_has_arrived_makes_no_room(server: Server) -> None:
    first = ask(server)
    assert server.asked.wait(DEADLINE_S)
    server.now_s = 100.0
    assert answer(slow(server)).startswith(b"HTTP/1.0 503")
    server.released.set()
    assert answer(first).startswith(b"HTTP/1.0 200")
