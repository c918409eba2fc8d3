"""A small HTTP server in a thread: GET /healthz, /readyz and /metrics, and nothing else.

It has no token, so it binds to loopback unless told otherwise, answers only to its own name
(a web page cannot reach it by DNS rebinding), and what it says is redacted.
"""

from __future__ import annotations

import ipaddress
import json
import os
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_INET6
from typing import Any

from gangline_schemas.base import Model

from .health import Health
from .redaction import redact_text

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_JSON = "application/json"

Exposition = Callable[[str], tuple[bytes, str]]


class BoundAddress(Model):
    """Where a process serves its health, as its port file holds it."""

    service: str
    instance: str
    pid: int
    host: str
    port: int
    url: str


class HealthServer:
    """Serves one `Health` from a daemon thread, from `start` to `close`.

    `exposition` gives the metrics for an Accept header; `secrets` never appear in an answer;
    an idle server looks every `close_within_s` seconds whether it was closed. Raises OSError
    when the address cannot be bound.
    """

    def __init__(
        self,
        health: Health,
        *,
        service: str,
        instance: str,
        host: str = "127.0.0.1",
        port: int = 0,
        exposition: Exposition | None = None,
        secrets: Iterable[str] = (),
        close_within_s: float = 0.5,
    ) -> None:
        self._secrets = frozenset(secrets)
        self._health = health
        self._exposition = exposition
        self._names = _LOOPBACK | {host.lower()}
        self._any_address = _is_unspecified(host)
        self._port_file: Path | None = None
        self._server = _Server((host, port), self)
        bound = int(self._server.server_address[1])
        shown = f"[{host}]" if ":" in host else host
        self.address = BoundAddress(
            service=service,
            instance=instance,
            pid=os.getpid(),
            host=host,
            port=bound,
            url=f"http://{shown}:{bound}",
        )
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(close_within_s,),
            name="health-server",
            daemon=True,
        )

    def start(self, port_file: Path | None = None) -> None:
        """Begin to answer; then write the address to `port_file`, whole or not at all."""
        self._thread.start()
        self._port_file = port_file
        if port_file is not None:
            _write_whole(port_file, self.address.encode())

    def remove_port_file(self) -> None:
        """Remove the port file, unless it is gone or a successor's."""
        if self._port_file is not None:
            _remove_own(self._port_file, self.address)

    def close(self) -> None:
        """Stop answering and remove the port file."""
        self.remove_port_file()
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()

    def knows(self, hosts: list[str]) -> bool:
        """Whether the request's Host headers are exactly one, and it names this server."""
        name, port = _split_host(hosts[0]) if len(hosts) == 1 else ("", "")
        if not name or port not in {"", str(self.address.port)}:
            return False
        # Bound to every address, it cannot list its names; but a rebinding page has a DNS name.
        return name in self._names or (self._any_address and _is_address(name))

    def answer(self, path: str, accept: str) -> tuple[HTTPStatus, bytes, str]:
        """Status, body and content type of one GET."""
        if path == "/healthz":
            return self._liveness()
        if path == "/readyz":
            return self._readiness()
        if path == "/metrics" and self._exposition is not None:
            body, content_type = self._exposition(accept)
            return HTTPStatus.OK, body, content_type
        return (
            HTTPStatus.NOT_FOUND,
            b'{"error":"not found: use /healthz, /readyz, /metrics"}',
            _JSON,
        )

    def _liveness(self) -> tuple[HTTPStatus, bytes, str]:
        alive = self._health.alive()
        body = {
            "status": "ok" if alive else "stalled",
            "beat_age_s": round(self._health.beat_age_s(), 3),
            "beat_timeout_s": self._health.beat_timeout_s,
        }
        return self._json(alive, body)

    def _readiness(self) -> tuple[HTTPStatus, bytes, str]:
        ready = self._health.ready()
        checks = [
            {"name": check.name, "ok": check.ok, "detail": redact_text(check.detail, self._secrets)}
            for check in self._health.checks()
        ]
        return self._json(ready, {"status": "ready" if ready else "not ready", "checks": checks})

    def _json(self, ok: bool, body: dict[str, Any]) -> tuple[HTTPStatus, bytes, str]:  # noqa: FBT001
        origin = {"service": self.address.service, "instance": self.address.instance}
        status = HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE
        return status, json.dumps({**origin, **body}).encode(), _JSON


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], owner: HealthServer) -> None:
        self.owner = owner
        if ":" in address[0]:
            self.address_family = AF_INET6
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without the standard one's reverse look-up of the host name, which can take seconds."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 5  # seconds for a client to send its request

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self.command != "GET":
            self._send(HTTPStatus.METHOD_NOT_ALLOWED, b'{"error":"only GET is allowed"}', _JSON)
            return False
        return True

    def do_GET(self) -> None:
        owner = self.server.owner
        if not owner.knows(self.headers.get_all("Host") or []):
            self._send(HTTPStatus.FORBIDDEN, b'{"error":"wrong Host header"}', _JSON)
            return
        path = self.path.partition("?")[0]
        self._send(*owner.answer(path, self.headers.get("Accept", "")))

    def _send(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response_only(status)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Probes come every second; they are not worth a line."""


def _split_host(header: str) -> tuple[str, str]:
    header = header.strip().lower()
    if header.startswith("["):
        name, _, rest = header[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = header.partition(":")
    return name, port


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_unspecified(host: str) -> bool:
    return host == "" or (_is_address(host) and ipaddress.ip_address(host).is_unspecified)


def _write_whole(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    draft.replace(path)


def _remove_own(path: Path, address: BoundAddress) -> None:
    try:
        if BoundAddress.decode(path.read_bytes()) == address:
            path.unlink()
    except (OSError, ValueError):
        return
