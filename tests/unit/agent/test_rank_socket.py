"""The ranks' socket: who may speak, and what is passed on."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline_schemas.rank_protocol import Control, Hello, Report
from gangline_worker.agent.model import GangKey, RankKey, RankMessage
from gangline_worker.agent.rank_socket import FRAME_LIMIT_BYTES, RankServer

GANG = GangKey("job", 1)
TOKENS = {0: "token-0", 1: "token-1"}
REPORT = Report(step=(1,), time_ms=(1,), metrics={"loss": (0.5,)})


class Server:
    """A server that takes this process for rank 0 alone."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "s"
        self.got: list[RankMessage] = []
        self._changed = threading.Condition()
        self.takes = threading.Event()  # what is received
        self.takes.set()
        self._peers: list[socket.socket] = []
        self.server = RankServer(lambda _, rank: rank.rank == 0, self._receive)
        self.server.open(GANG, self.path, TOKENS)

    def _receive(self, message: RankMessage) -> None:
        self.takes.wait()
        with self._changed:
            self.got.append(message)
            self._changed.notify_all()

    def wait(self, count: int) -> list[RankMessage]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.got) >= count, 10.0)
            return list(self.got)

    def connect(self, *frames: bytes) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._peers.append(peer)
        peer.settimeout(10.0)
        peer.connect(str(self.path))
        peer.sendall(b"".join(frames))
        return peer

    def close(self) -> None:
        self.server.close(GANG)
        for peer in self._peers:
            peer.close()


def hello(rank: int = 0, token: str = "token-0") -> bytes:
    return Hello(rank=rank, token=token).encode() + b"\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.close()


def test_a_rank_is_heard_and_told(server: Server):
    peer = server.connect(hello(), REPORT.encode()[:9])
    peer.sendall(REPORT.encode()[9:] + b"\n")
    rank = RankKey(GANG, 0)
    assert server.wait(2)[1] == RankMessage(rank, REPORT, os.getpid())
    server.server.send(rank, Control(stop="drain"))
    assert Control.decode(peer.makefile("rb").readline()).stop == "drain"


@pytest.mark.parametrize(
    "frames",
    [
        hello(token="wrong"),
        hello(rank=1, token="token-1"),
        hello(rank=7, token=""),
        REPORT.encode() + b"\n",
        b"not json\n",
        hello() + hello(rank=1, token="token-1"),
        hello() + b"x" * (FRAME_LIMIT_BYTES + 1),
    ],
    ids=[
        "token",
        "process of another rank",
        "no such rank",
        "no hello",
        "no json",
        "two ranks",
        "size",
    ],
)
def test_who_is_not_the_rank_is_hung_up_on(server: Server, frames: bytes):
    peer = server.connect()
    try:
        peer.sendall(frames)
        assert peer.recv(1) == b""
    except (ConnectionResetError, BrokenPipeError):
        pass
    assert all(isinstance(item.message, Hello) and item.rank.rank == 0 for item in server.got)


def test_what_an_ended_rank_sent_is_received_before_drain_returns(server: Server):
    peer = server.connect(hello(), *[REPORT.encode() + b"\n"] * 500)
    server.wait(1)
    peer.close()
    server.server.drain(RankKey(GANG, 0), 10.0)
    assert len(server.got) == 501


def test_a_closed_gang_hangs_up_and_its_socket_is_gone(server: Server):
    peer = server.connect(hello())
    server.wait(1)
    server.server.close(GANG)
    server.server.close(GANG)
    assert peer.recv(1) == b""
    assert not server.path.exists()


def test_what_an_ended_rank_said_is_waited_for_though_nobody_had_heard_of_it(server: Server):
    server.takes.clear()
    server.connect(hello())  # holds up the server
    server.connect(hello(), REPORT.encode() + b"\n").close()
    drained = threading.Thread(target=server.server.drain, args=(RankKey(GANG, 0), 60.0))
    drained.start()
    server.takes.set()
    drained.join()
    assert RankMessage(RankKey(GANG, 0), REPORT, os.getpid()) in server.got


def test_a_connection_that_a_process_left_behind_holds_is_not_waited_for(server: Server):
    server.connect(hello())
    server.wait(1)
    server.server.drain(RankKey(GANG, 0), threading.TIMEOUT_MAX)  # and comes back
