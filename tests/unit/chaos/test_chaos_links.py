"""The ways that chaos cuts: what passes, what waits, and whom clients of the bus are sent to."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from chaos.links import LOOPBACK, BusLink, Link

TIMEOUT_S = 10.0
QUIET_S = 0.2


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server((LOOPBACK, 0)) as listening:
        listening.settimeout(TIMEOUT_S)
        yield listening


def port_of(listening: socket.socket) -> int:
    port: int = listening.getsockname()[1]
    return port


def connected(link: Link, server: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection((LOOPBACK, link.port), timeout=TIMEOUT_S)
    accepted, _ = server.accept()
    accepted.settimeout(TIMEOUT_S)
    return client, accepted


def test_what_is_sent_over_a_link_that_is_cut_arrives_when_it_is_mended(
    server: socket.socket,
) -> None:
    link = Link(port_of(server))
    client, accepted = connected(link, server)
    with client, accepted:
        client.sendall(b"before")
        assert accepted.recv(6) == b"before"
        link.cut()
        client.sendall(b"during")
        accepted.settimeout(QUIET_S)
        with pytest.raises(TimeoutError):
            accepted.recv(6)
        accepted.settimeout(TIMEOUT_S)
        link.mend()
        assert accepted.recv(6) == b"during"
        accepted.sendall(b"answer")
        assert client.recv(6) == b"answer"
    link.close()


def test_when_one_end_goes_the_other_is_told(server: socket.socket) -> None:
    link = Link(port_of(server))
    client, accepted = connected(link, server)
    with client:
        accepted.close()
        assert client.recv(1) == b""
    link.close()


def test_who_asks_for_the_broker_by_a_link_is_sent_back_to_it(server: socket.socket) -> None:
    link = BusLink(port_of(server))
    client, accepted = connected(link, server)
    with client, accepted:
        body = b"broker \x0a127.0.0.1" + port_of(server).to_bytes(4, "big") + b" and others"
        accepted.sendall(len(body).to_bytes(4, "big") + body[:20])
        accepted.sendall(body[20:])
        sent = b""
        while len(sent) < 4 + len(body):
            sent += client.recv(4096)
        expected = b"broker \x0a127.0.0.1" + link.port.to_bytes(4, "big") + b" and others"
        assert sent == len(body).to_bytes(4, "big") + expected
    link.close()
