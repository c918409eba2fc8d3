"""Whom a round asks, when many say nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline_schemas.events.scheduling import GangAllocated
from gangline_schemas.events.workers import ObjectDigest
from gangline_storage import LocalStore, digest_bytes
from gangline_storage.shared_secret import SharedSecret
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.peers.client import PeerCopies, Round
from gangline_worker.agent.peers.gangs import Gangs, Peer
from gangline_worker.agent.peers.seal import SECRET_KEY
from support.builders.gangs import assigned
from support.harnesses.peers import gang

DATA = b"a shard"
NAME = "step-0000000010/rank-00000.bin"
DIGEST = ObjectDigest(key=f"a/{NAME}", size_bytes=len(DATA), xxh3=digest_bytes(DATA))

OWN = assigned("own", (0,))


class Ring(Gangs):
    """Peers in the order in which they are asked."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.peers = tuple(Peer(name, "i", "127.0.0.1", 1) for name in names)

    def beside(self, allocation: GangAllocated, own: str) -> tuple[Peer, ...]:
        return self.peers


@pytest.fixture(autouse=True)
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The peer that is called silent says nothing until the test is over; others have the one file.

    Gives the names of those that were asked what they hold.
    """
    over = threading.Event()
    asked: list[str] = []

    def held(_round: Round, peer: Peer) -> tuple[str, ...]:
        asked.append(peer.node_id)
        if peer.node_id.startswith("silent"):
            over.wait()
        return (NAME,)

    @contextlib.contextmanager
    def answer(
        _copies: PeerCopies, peer: Peer, gang: GangKey, path: str, size: int
    ) -> Iterator[Iterator[bytes]]:
        yield iter([DATA])

    monkeypatch.setattr(Round, "_held", held)
    monkeypatch.setattr(PeerCopies, "answer", answer)
    yield asked
    over.set()


@pytest.mark.parametrize("silent", [0, 1, 20])
def test_who_is_silent_keeps_nobody_from_being_asked(silent: int, tmp_path: Path) -> None:
    ring = Ring(*(f"silent-{number}" for number in range(silent)), "sound")
    secret = SharedSecret(LocalStore(tmp_path), SECRET_KEY)
    asked = PeerCopies("own", secret, ring, timeout_s=0.3).round(gang(2, OWN))
    got: list[bytes] = []
    assert asked.find([DIGEST]) == [DIGEST]
    assert asked.bring(DIGEST, got.extend) == "sound"
    assert got == [DATA]


def test_a_peer_is_asked_once_however_often_files_are_looked_for(
    heard: list[str], tmp_path: Path
) -> None:
    ring = Ring("silent", "sound", "other")
    secret = SharedSecret(LocalStore(tmp_path), SECRET_KEY)
    asked = PeerCopies("own", secret, ring, timeout_s=0.2).round(gang(2, OWN))
    for _ in range(2):
        assert asked.find([DIGEST]) == [DIGEST]
    assert sorted(heard) == ["other", "silent", "sound"]
