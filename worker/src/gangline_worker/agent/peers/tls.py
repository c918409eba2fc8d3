"""TLS between agents: both sides prove themselves by certificates of one authority."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PeerTls:
    """How an agent answers others, and how it asks them."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def peer_tls(cert: Path, key: Path, ca: Path) -> PeerTls:
    """Of an agent's certificate, which names its address, its key, and the agents' authority.

    Raises OSError when a file cannot be used.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(cert, key)
        context.load_verify_locations(ca)
    return PeerTls(server, client)
