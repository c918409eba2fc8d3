"""The ranks' socket: who may speak, and what is passed on."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from random import Random

import pytest

from gangline_schemas.rank_protocol import Control, FromRank, Hello, Report
from gangline_worker.agent.decide.inputs import RankMessage
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.runtime.gang_share import BURST_BYTES, LEFT_OUT, USED_UP
from gangline_worker.agent.runtime.rank_socket import FRAME_LIMIT_BYTES, RankServer
from gangline_worker.columns import to_columns

GANG = GangKey("job", 1)
FRAMES = int(os.environ.get("GANGLINE_FUZZ_FRAMES", "250"))
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
        self.told: SimpleQueue[tuple[RankKey, str]] = SimpleQueue()
        self.passes_s = 10.0  # whenever the time is asked for
        self._now_s = 0.0
        self.server = RankServer(
            lambda _, rank: rank.rank == 0,
            self._receive,
            lambda rank, text: self.told.put((rank, text)),
            self._clock,
        )
        self.server.open(GANG, self.path, TOKENS)

    def _clock(self) -> float:
        self._now_s += self.passes_s
        return self._now_s

    def _receive(self, message: RankMessage) -> None:
        self.takes.wait()
        with self._changed:
            self.got.append(message)
            self._changed.notify_all()

    def wait(self, count: int) -> list[RankMessage]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.got) >= count, 10.0)
            return list(self.got)

    def hears(self, message: FromRank) -> bool:
        with self._changed:
            return self._changed.wait_for(
                lambda: any(item.message == message for item in self.got), 10.0
            )

    def connect(self, *frames: bytes, path: Path | None = None) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._peers.append(peer)
        peer.settimeout(10.0)
        peer.connect(str(path or self.path))
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


def test_a_gang_that_says_more_than_its_share_waits_and_others_do_not(
    server: Server, tmp_path: Path
):
    frame = REPORT.encode() + b" " * 500_000 + b"\n"
    peer = server.connect(hello())
    server.wait(1)
    server.passes_s = 0.0

    def flood() -> None:
        for _ in range(2 * BURST_BYTES // len(frame)):
            peer.sendall(frame)

    flooding = threading.Thread(target=flood)
    flooding.start()
    assert server.told.get(timeout=10.0) == (RankKey(GANG, 0), USED_UP)
    other = tmp_path / "other"
    server.server.open(GangKey("other", 1), other, TOKENS)
    beside = server.connect(hello(), path=other)
    for step in range(200):  # each time the server looks at all that it may read
        report = Report(step=(step,), time_ms=(1,), metrics={})
        beside.sendall(report.encode() + b"\n")
        assert server.hears(report)
    flooded = sum(item.rank.gang == GANG for item in server.got)
    assert flooded <= 2 + BURST_BYTES // len(frame)  # the clock stands still

    server.passes_s = 10.0
    server.wait(1 + 2 * BURST_BYTES // len(frame) + 201)
    flooding.join()
    assert server.told.empty()


def test_a_user_is_told_once_that_steps_are_left_out(server: Server):
    rows = [(1, 1, {"loss": 0.5})]
    frames = [to_columns(rows, dropped=number).encode() + b"\n" for number in (0, 3, 4)]
    server.connect(hello(), *frames)
    server.wait(4)
    assert server.told.get_nowait() == (RankKey(GANG, 0), LEFT_OUT)
    assert server.told.empty()


def hostile(random: Random) -> bytes:
    """A frame that no well-meaning program sends."""
    report = b'{"kind":"report","step":%s,"time_ms":[1],"metrics":{%s}}'
    depth, digits = random.choice((10, 197, 5000, 900_000)), random.choice((20, 4300, 900_000))
    made: tuple[Callable[[], bytes], ...] = (
        lambda: random.randbytes(random.randint(1, 2000)).replace(b"\n", b" "),
        lambda: b"[" * depth,
        lambda: b'{"kind":' * random.randint(1, 50_000),
        lambda: report % (b"[" + b"9" * digits + b"]", b""),
        lambda: report % (b"[1]", b'"loss":[1e999]'),
        lambda: report % (b"[1]", b'"\\ud800":[1]'),
        lambda: report % (b"[" + b"1," * 400_000 + b"1]", b""),
        lambda: report % (b"[1]", b",".join(b'"m%d":[0]' % number for number in range(20_000))),
        lambda: report % (b'["x"' + b',"x"' * 200_000 + b"]", b""),
        lambda: b'{"kind":"hello","rank":%d,"token":"token-0"}' % random.choice((-1, 1, 2**70)),
        lambda: b'{"kind":"shard_ready","step":1,"rank":0,"world_size":1,"write_s":1e308}',
        lambda: b"x" * (FRAME_LIMIT_BYTES + 1),
        lambda: b"\x00" * random.randint(1, 100),
        lambda: b"null",
        lambda: b'"' + b"\xff" * 100 + b'"',
    )
    return random.choice(made)()


def test_hostile_frames_end_their_lines_and_nobody_elses(server: Server) -> None:
    random = Random(23)
    good = server.connect(hello())
    for number in range(FRAMES):
        peer = server.connect()
        with suppress(OSError):  # it is hung up on while it still sends
            first = hello() + b"\n" if random.random() < 0.7 else b""
            peer.sendall(first + hostile(random) + random.choice((b"\n", b"\n\n", b"")))
            peer.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            assert peer.recv(1) == b""
        peer.close()
        if number % 50 == 0:
            report = Report(step=(number,), time_ms=(1,), metrics={})
            good.sendall(report.encode() + b"\n")
            assert server.hears(report)


def test_a_rank_that_reads_nothing_is_hung_up_on(server: Server):
    peer = server.connect(hello())
    server.wait(1)
    told = Control(stop="drain")
    for _ in range(100_000):
        server.server.send(RankKey(GANG, 0), told)
        if not server.server.kept()[0].lines:
            break
    assert not server.server.kept()[0].lines
    peer.close()
