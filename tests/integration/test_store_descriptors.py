"""More connections to one gang's store than there are descriptors: other gangs notice nothing."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from support.harnesses.node import free_port

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a proxy needs a network namespace")

DESCRIPTORS = 300
SERVER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, {descriptors}))
from gangline_worker.agent.rendezvous import proxy, store_server
if {others} is not None:
    proxy._OTHER_DESCRIPTORS = {others}
store_server.main()
"""


class Server:
    """A store server, and the agent's end of its channel."""

    def __init__(self, others: int | None) -> None:
        ours, theirs = socket.socketpair()
        program = SERVER.format(descriptors=DESCRIPTORS, others=others)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program], stdin=subprocess.DEVNULL, stdout=theirs.fileno()
            )
        self.channel = ours
        self.answers = ours.makefile("rb")
        assert self.answers.readline() == b'{"ready": ""}\n'

    def open(self, key: str, clients: int) -> int:
        """A store's port."""
        port = free_port()
        command = {"open": key, "address": "127.0.0.1", "port": port, "uid": os.getuid()}
        command |= {"peers": [], "clients": clients}
        self.channel.sendall(json.dumps(command).encode() + b"\n")
        assert json.loads(self.answers.readline()) == {"opened": key}
        return port

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.answers.close()
        self.channel.close()


@pytest.fixture(params=[None, -10_000], ids=["counted", "met"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One that counts its descriptors, and one that meets the system's limit."""
    running = Server(request.param)
    yield running
    running.close()


def closed(link: socket.socket) -> bool:
    """Whether the server hung up on it before it answered a ping of the store."""
    with contextlib.suppress(ConnectionError):
        return link.recv(1) == b""
    return True


def test_too_many_connections_to_one_store_leave_the_others_as_they_are(server: Server) -> None:
    from torch.distributed import TCPStore

    ours, theirs = server.open("team-a/1", 16), server.open("team-b/1", 100_000)
    limit = timedelta(seconds=20)
    store = TCPStore("127.0.0.1", ours, is_master=False, wait_for_workers=False, timeout=limit)
    store.set("k", "v")
    links = []
    for _ in range(2 * DESCRIPTORS):
        link = socket.create_connection(("127.0.0.1", theirs), timeout=20)
        links.append(link)
    assert closed(links[-1]), "the last one finds no room"
    assert store.get("k") == b"v"
    assert server.process.poll() is None
    assert server.descriptors() <= DESCRIPTORS

    for link in links:
        link.close()
    for _ in range(200):  # what was closed makes room again
        with contextlib.suppress(RuntimeError):
            late = TCPStore("127.0.0.1", theirs, is_master=False, wait_for_workers=False)
            late.set("k", "w")
            break
    assert late.get("k") == b"w"
    assert store.get("k") == b"v"
