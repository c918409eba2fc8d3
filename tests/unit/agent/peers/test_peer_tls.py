"""Agents that ask each other over TLS: copies come, and strangers are refused."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from gangline.local.certificates import Authority
from gangline_worker.agent.config import AgentSettings
from gangline_worker.agent.peers.tls import PeerTls, peer_tls
from support.harnesses.peers import PeerHarness, running_peers


def made(folder: Path) -> PeerTls:
    authority = Authority(folder)
    own = authority.keep("agents")
    return peer_tls(own, own, authority.path)


@pytest.fixture
def tls(tmp_path: Path) -> PeerTls:
    return made(tmp_path / "tls")


@pytest.fixture
def harness(tmp_path: Path, tls: PeerTls) -> Iterator[PeerHarness]:
    with running_peers(tmp_path, tls=tls) as found:
        yield found


def test_a_copy_comes_from_the_other_node_and_not_from_the_store(harness: PeerHarness) -> None:
    again = harness.restart("a", "b")
    found = harness.nodes["a"].fetch(again)
    assert (found / "rank-00001.bin").read_bytes() == harness.data[1]
    assert harness.store.files_read == []


def answer(secured: ssl.SSLSocket, asked: bytes) -> bytes:
    secured.sendall(asked)
    return secured.recv(100)


@pytest.mark.parametrize("stranger", ["plain", "no certificate", "another authority"])
def test_a_stranger_is_not_answered(harness: PeerHarness, tmp_path: Path, stranger: str) -> None:
    port = harness.nodes["b"].tier.port
    with socket.create_connection(("127.0.0.1", port), 5) as plain:
        asked = b"GET /v1/copies/job/1 HTTP/1.0\r\n\r\n"
        if stranger == "plain":
            plain.sendall(asked)
            assert b"HTTP" not in plain.recv(100)
            return
        context = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.pem"))
        if stranger == "another authority":
            context.load_cert_chain(Authority(tmp_path / "other").keep("agents"))
        with (
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            answer(secured, asked)


def test_a_peer_of_another_authority_gives_nothing(tmp_path: Path, harness: PeerHarness) -> None:
    node = harness.nodes["a"]
    object.__setattr__(node.copies, "tls", made(tmp_path / "other"))
    again = harness.restart("a", "b")
    found = node.fetch(again)
    assert (found / "rank-00001.bin").read_bytes() == harness.data[1]
    assert "rank-00001.bin" in harness.store.files_read


def test_the_settings_belong_together() -> None:
    with pytest.raises(ValidationError, match="peer_ca_file, or none of them"):
        AgentSettings(bootstrap_servers="k:1", store_url="file:///s", peer_tls_cert=Path("c"))
