"""A registry of images in this process (OCI distribution): tokens, ranges, and faults to order."""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
_TOKEN = "a-token-of-the-registry"


def digest_of(raw: bytes) -> str:
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


@dataclass
class OciRegistry:
    """`user`: "NAME:PASSWORD" that its token server wants; None: it gives tokens to all.

    `cuts`: after so many bytes the connection of the next blob ends. `busy`: so many requests are
    answered with 429. `wrong`: digests whose bytes come changed. `sent`: bytes of blobs. `again`,
    `realm`, `token` and `moved`: its Retry-After, where it sends for a token, the token, and where
    it sends for blobs. `challenge`: its WWW-Authenticate, else the right one. `no_ranges`: whole
    blobs come, whatever is asked. `tls`: its certificate.
    """

    user: str | None = None
    cuts: deque[int] = field(default_factory=deque)
    busy: int = 0
    wrong: set[str] = field(default_factory=set)
    sent: int = 0
    again: str = "0"
    realm: str | None = None
    token: object = _TOKEN
    moved: str | None = None
    challenge: str | None = None
    no_ranges: bool = False
    tls: ssl.SSLContext | None = None
    counting: threading.Lock = field(default_factory=threading.Lock)
    requests: list[str] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        owner = self

        class Handler(_Handler):
            registry = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add_blob(self, raw: bytes) -> str:
        digest = digest_of(raw)
        self.blobs[digest] = raw
        return digest

    def add_manifest(self, tag: str, media_type: str, content: dict[str, Any]) -> str:
        raw = json.dumps({"schemaVersion": 2, "mediaType": media_type, **content}).encode()
        digest = digest_of(raw)
        for name in (tag, digest):
            self.manifests[name] = (media_type, raw)
        return digest

    def push(
        self,
        tag: str,
        layers: Iterable[bytes],
        *,
        architecture: str = "",
        os: str = "linux",
        **config: object,
    ) -> str:
        """An image with these packed layers and settings such as Cmd; the manifest's digest."""
        machine = architecture or own_architecture()
        document = {"architecture": machine, "os": os, "config": config}
        parts = [(CONFIG, json.dumps(document).encode()), *((LAYER, raw) for raw in layers)]
        described = [
            {"mediaType": kind, "digest": self.add_blob(raw), "size": len(raw)}
            for kind, raw in parts
        ]
        content = {"config": described[0], "layers": described[1:]}
        return self.add_manifest(tag, MANIFEST, content)


def own_architecture() -> str:
    from gangline_worker.agent.images import manifests

    return manifests.own_architecture()


class _Handler(BaseHTTPRequestHandler):
    registry: OciRegistry
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""

    def do_GET(self) -> None:
        registry, address = self.registry, urlsplit(self.path)
        registry.requests.append(self.path)
        if address.path == "/token":
            self._token(parse_qs(address.query))
        elif registry.busy > 0:
            registry.busy -= 1
            self._answer(429, b"{}", **{"Retry-After": registry.again})
        elif self.headers.get("Authorization") != f"Bearer {_TOKEN}":
            at = registry.realm or f"http://{registry.host}/token"
            realm = f'Bearer realm="{at}",service="tests"'
            self._answer(401, b"{}", **{"WWW-Authenticate": registry.challenge or realm})
        else:
            self._content(address.path)

    def _token(self, asked: dict[str, list[str]]) -> None:
        wanted = self.registry.user
        given = self.headers.get("Authorization", "").removeprefix("Basic ")
        if wanted is not None and base64.b64decode(given).decode() != wanted:
            self._answer(401, b"{}")
        else:
            assert asked["scope"][0].endswith(":pull"), asked
            self._answer(200, json.dumps({"token": self.registry.token}).encode())

    def _content(self, path: str) -> None:
        kind, name = path.split("/")[-2:]
        if kind == "manifests" and name in self.registry.manifests:
            media_type, raw = self.registry.manifests[name]
            self._answer(200, raw, **{"Content-Type": media_type})
        elif kind == "blobs" and self.registry.moved is not None:
            self._answer(307, b"", Location=self.registry.moved)
        elif kind == "blobs" and name in self.registry.blobs:
            self._blob(name)
        else:
            self._answer(404, b"{}")

    def _blob(self, digest: str) -> None:
        registry = self.registry
        raw = registry.blobs[digest]
        if digest in registry.wrong:
            raw = bytes([raw[0] ^ 1]) + raw[1:]
        begins, status = 0, 200
        wanted = self.headers.get("Range")
        if wanted is not None and not registry.no_ranges:
            begins, status = int(wanted.removeprefix("bytes=").partition("-")[0]), 206
        rest = raw[begins:]
        self.send_response(status)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        cut = registry.cuts.popleft() if registry.cuts else len(rest)
        self.wfile.write(rest[:cut])
        with registry.counting:
            registry.sent += min(cut, len(rest))
        if cut < len(rest):
            self.close_connection = True

    def _answer(self, status: int, raw: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
