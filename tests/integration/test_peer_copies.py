"""Copies among nodes: parts of three agents, real sockets, a store that counts its reads.

At last two whole agents, and a store whose objects are damaged.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gangline_schemas.events.faults import NodeFailed
from gangline_schemas.events.scheduling import GangAllocated, ReleaseReason
from gangline_schemas.events.workers import NodeJoined
from gangline_schemas.rank_protocol import CopyDamaged, CopyReplaced
from gangline_storage.local import LocalStore
from gangline_worker.agent.checkpoints.integrity import CheckpointDamaged
from gangline_worker.agent.checkpoints.repair import Repairs
from gangline_worker.agent.checkpoints.transfer import Checkpoints
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.peers import client as peer_client
from support.harnesses.node import NodeHarness
from support.harnesses.peers import PeerHarness, PeerNode, commit, running_peers, save


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[PeerHarness]:
    with running_peers(tmp_path) as made:
        yield made


def starts(harness: PeerHarness, node: str, allocation: GangAllocated) -> dict[str, object]:
    """Prepare a gang on a node: all bytes are right; what the log says of where they came from."""
    with capture_logs() as lines:
        folder = harness.nodes[node].fetch(allocation)
    for rank in (0, 1):
        assert (folder / f"rank-{rank:05d}.bin").read_bytes() == harness.data[rank]
        assert (folder / f"rank-{rank:05d}.json").read_bytes() == b"manifest of %d" % rank
    [told] = [line for line in lines if line["event"] == "checkpoint.fetched"]
    return dict(told)


def counts(told: dict[str, object]) -> tuple[object, ...]:
    return told["local_files"], told["peer_files"], told["store_files"]


def test_each_node_gets_the_others_part_from_it_and_the_store_is_not_read(
    harness: PeerHarness,
) -> None:
    second = harness.restart("a", "b")
    assert counts(starts(harness, "a", second)) == (2, 2, 0)
    assert counts(starts(harness, "b", second)) == (2, 2, 0)
    assert harness.store.files_read == []
    assert counts(starts(harness, "a", second)) == (4, 0, 0), "now it has them itself"


def test_a_copy_that_is_lost_or_damaged_here_is_of_the_other_node(
    harness: PeerHarness,
) -> None:
    second = harness.restart("a", "b")
    starts(harness, "b", second)
    harness.nodes["a"].path("rank-00000.json").unlink()
    os.truncate(harness.nodes["a"].path("rank-00000.bin"), 1000)
    told = starts(harness, "a", second)
    assert counts(told) == (0, 4, 0)
    assert told["peer_bytes"] == 2 * len(harness.data[0]) + 2 * len(b"manifest of 0")
    assert harness.store.files_read == []


def test_a_node_that_has_nothing_gets_all_of_it_from_two_nodes(harness: PeerHarness) -> None:
    """The whole gang moved: neither a nor b is of it, but c has read that they were."""
    moved = harness.restart("c")
    assert counts(starts(harness, "c", moved)) == (0, 4, 0)
    assert harness.store.files_read == []


def test_nodes_that_failed_are_not_asked(harness: PeerHarness) -> None:
    harness.hear(NodeFailed(node_id="a", incarnation="i", reason="silent"))
    moved = harness.restart("c")
    assert counts(starts(harness, "c", moved)) == (0, 2, 2)
    assert harness.store.files_read == ["rank-00000.json", "rank-00000.bin"]


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    "damage",
    [flip, lambda path: os.truncate(path, 1000), Path.unlink],
    ids=["flipped", "short", "gone"],
)
def test_where_a_peers_copy_is_damaged_the_store_has_another(
    harness: PeerHarness, damage: Callable[[Path], None]
) -> None:
    damage(harness.nodes["b"].path("rank-00001.bin"))
    second = harness.restart("a", "b")
    assert counts(starts(harness, "a", second)) == (2, 1, 1)
    assert harness.store.files_read == ["rank-00001.bin"]
    if damage is flip:  # its rank finds it
        assert harness.nodes["b"].refetch(second, "rank-00001.bin") == ("node a", True)
    else:
        assert counts(starts(harness, "b", second)) == (1, 3, 0), "it gets its own back from a"


def test_damage_everywhere_is_reported_and_no_start_is_left(
    harness: PeerHarness,
) -> None:
    flip(harness.nodes["b"].path("rank-00001.bin"))
    stored = next(harness.store.root.rglob("rank-00001.bin"))
    flip(stored)
    second = harness.restart("a", "b")
    with pytest.raises(CheckpointDamaged, match=r"rank-00001\.bin") as found:
        harness.nodes["a"].fetch(second)
    assert found.value.key == str(stored.relative_to(harness.store.root))
    assert not harness.nodes["a"].path("rank-00001.bin").exists()


def test_a_peer_that_is_away_is_passed_over(harness: PeerHarness) -> None:
    second = harness.restart("a", "b")
    harness.nodes["b"].stop()
    assert counts(starts(harness, "a", second)) == (2, 0, 2)
    assert sorted(harness.store.files_read) == ["rank-00001.bin", "rank-00001.json"]


def test_a_peer_that_never_heard_of_the_attempt_gives_nothing(harness: PeerHarness) -> None:
    """Nor does one that knows it to be over: a token of another attempt opens nothing."""
    stale = harness.gang(2, "a", "b", resume=harness.ref)
    harness.nodes["a"].tier.note(stale)
    harness.restart("a", "b", attempt=3)
    assert counts(starts(harness, "a", stale)) == (2, 0, 2)


def test_a_rank_that_finds_damage_is_told_whose_copy_it_reads_on_from(harness: PeerHarness) -> None:
    second = harness.restart("a", "b")
    folder = harness.nodes["a"].fetch(second)
    flip(folder / "rank-00001.bin")
    harness.store.read.clear()
    peers = harness.nodes["a"].copies.round(second)
    notes: list[str] = []
    repairs = Repairs(
        harness.nodes["a"].checkpoints, lambda _, text: notes.append(text), lambda _: None
    )
    asked = CopyDamaged(file="rank-00001.bin", reason="its xxh3-128 is another")
    answer = repairs.answer(RankKey(GangKey("job", 2), 0), second, asked, peers=peers)
    assert answer == CopyReplaced(file="rank-00001.bin", sound=True)
    assert (folder / "rank-00001.bin").read_bytes() == harness.data[1]
    assert notes == [
        "rank-00001.bin of the checkpoint was damaged here; a sound copy of node b lies there now"
    ]
    assert harness.store.read == [], "what it may ask for is known since the gang was prepared"


class BadPeer:
    """In the place of node b: what it does with each connection, once it has read the request."""

    def __init__(self, port: int, does: Callable[[socket.socket, bytes], None]) -> None:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.settimeout(30)
                with contextlib.suppress(OSError):
                    request = b""
                    while b"\r\n\r\n" not in request:
                        request += self.request.recv(4096)
                    does(self.request, request)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        self._server = Server(("127.0.0.1", port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def in_place_of(node: PeerNode, does: Callable[[socket.socket, bytes], None]) -> Iterator[None]:
    """Another program has the port of a node's agent."""
    port = node.tier.port
    node.stop()
    bad = BadPeer(port, does)
    try:
        yield
    finally:
        bad.close()


def says_nothing(peer: socket.socket, _request: bytes) -> None:
    peer.recv(1)  # until the other side hangs up


def drips(peer: socket.socket, _request: bytes) -> None:
    """A byte now and then: no single read ever waits for long."""
    peer.sendall(b"HTTP/1.0 200 OK\r\nX-Slow: ")
    pause = threading.Event()
    while not pause.wait(0.02):
        peer.sendall(b"x")


def speaks_otherwise(peer: socket.socket, _request: bytes) -> None:
    peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")


def forges(peer: socket.socket, request: bytes) -> None:
    """Even what is right is not taken from it."""
    body = b'{"files": ["step-0000000005/rank-00001.json"]}'
    if b"rank-00001.json" in request:
        body = b"manifest of 1"
    head = f"HTTP/1.0 200 OK\r\nGangline-Proof: {'0' * 64}\r\nContent-Length: {len(body)}\r\n\r\n"
    peer.sendall(head.encode() + body)


@pytest.mark.parametrize("does", [says_nothing, drips, speaks_otherwise, forges])
def test_a_program_that_is_no_agent_costs_a_bounded_time_and_gives_nothing(
    tmp_path: Path, does: Callable[[socket.socket, bytes], None]
) -> None:
    with running_peers(tmp_path, timeout_s=0.3) as harness:
        second = harness.restart("a", "b")
        with in_place_of(harness.nodes["b"], does):
            assert counts(starts(harness, "a", second)) == (2, 0, 2)


@pytest.mark.parametrize("how", ["stalls", "hangs up"])
def test_a_peer_that_stops_in_the_middle_of_a_file_is_not_asked_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It answers by the real agent behind it, but passes on the first bytes of a body alone."""
    monkeypatch.setattr(peer_client, "SLOWEST_BYTES_PER_S", 1 << 30)
    asked: list[str] = []
    with running_peers(tmp_path, timeout_s=0.5) as harness:
        second = harness.restart("a", "b")
        real = PeerNode(tmp_path, "b", harness.store)
        real.tier.note(second)

        def stops(peer: socket.socket, request: bytes) -> None:
            line, *headers = request.decode().split("\r\n")
            path = line.split(" ")[1]
            connection = http.client.HTTPConnection("127.0.0.1", real.tier.port, timeout=30)
            given = dict(header.split(": ", 1) for header in headers if ": " in header)
            connection.request("GET", path, headers=given)
            answer = connection.getresponse()
            body = answer.read()
            shown = answer.headers["Gangline-Proof"]
            head = f"HTTP/1.0 200 OK\r\nGangline-Proof: {shown}\r\nContent-Length: {len(body)}"
            if "rank-" in path:
                asked.append(path)
                body = body[: len(body) // 2]
            peer.sendall(head.encode() + b"\r\n\r\n" + body)
            if "rank-" in path and how == "stalls":
                peer.recv(1)

        with in_place_of(harness.nodes["b"], stops), contextlib.closing(real.tier._server):
            assert counts(starts(harness, "a", second)) == (2, 0, 2)
            assert len(asked) == 1


LISTS = """
import os, pathlib
folder = pathlib.Path(os.environ["GANGLINE_RESUME_FROM"])
for path in sorted(folder.glob("rank-*")):
    print(path.name, path.read_bytes()[:20].decode(), flush=True)
"""


def test_an_agent_starts_a_gang_from_another_agents_copy(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    """The store's own objects are damaged, so nothing else can have been used."""
    told = tmp_path / "health.json"
    with NodeHarness(tmp_path, kafka_bootstrap) as harness:
        first_node = harness.start_agent()
        environment = {
            **harness._environment,
            "GANGLINE_NODE_ID": "second",
            "GANGLINE_DATA_DIR": str(tmp_path / "second"),
            "GANGLINE_HEALTH_FILE": str(told),
        }
        second = subprocess.Popen(
            [sys.executable, "-m", "gangline_worker.agent"], env=environment, stdout=harness._log
        )
        try:
            harness.wait(lambda: len(harness.of(NodeJoined)) == 2)
            first = harness.allocate(first_node, gpus=(0,), command=["true"])
            harness.exits(1)
            store = LocalStore(harness.store)
            held = Checkpoints(
                tmp_path / "node" / "checkpoints", store, node_id="first", link=False
            )
            ref = commit(store, [save(held, 0, first, b"of the first node")])
            for stored in harness.store.rglob("rank-*"):
                os.truncate(stored, 3)
            harness.release(first, ReleaseReason.RESTARTING)
            [node] = [item.node for item in harness.of(NodeJoined) if item.node.node_id == "second"]

            command = ["python", "-c", LISTS]
            harness.allocate(node, attempt=2, gpus=(0,), resume=ref, command=command)
            assert harness.exits(2)[2, 0].exit_code == 0
            harness.wait(lambda: len(harness.lines(0, 2)) == 2)
            assert harness.lines(0, 2) == [
                "rank-00000.bin of the first node",
                "rank-00000.json manifest of 0",
            ]
            url = json.loads(told.read_text())["url"]
            with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
                metrics = answer.read().decode()
            assert 'gangline_checkpoint_fetched_files_total{tier="peer"} 2.0' in metrics
            assert 'gangline_checkpoint_fetched_bytes_total{tier="peer"} 30.0' in metrics
            assert 'tier="store"' not in metrics
        finally:
            second.kill()
            second.wait()
