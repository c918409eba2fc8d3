"""A small HTTP server in a thread: GET /healthz, /readyz and /metrics, and nothing else.

It has no token, so by default it binds to loopback. It answers only to its own name (a web page
cannot reach it by DNS rebinding), and its answers are redacted.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from .bound_address import BoundAddress
from .health import Health
from .loopback import is_loopback
from .redaction import redact_text
from .thread_server import ARRIVE_S, ThreadServer

_JSON = "application/json"

Exposition = Callable[[str], tuple[bytes, str]]


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
        self._name = host.lower()
        self._any_address = _is_unspecified(host)
        self._port_file: Path | None = None
        self._server = _Server((host, port), self, close_within_s)
        self.address = BoundAddress.of(service, instance, host, self._server.port)

    def start(self, port_file: Path | None = None) -> None:
        """Begin to answer; then write the address to `port_file`, whole or not at all."""
        self._server.start()
        self._port_file = port_file
        if port_file is not None:
            self.address.write(port_file)

    def remove_port_file(self) -> None:
        """Remove the port file, unless it is gone or a successor's."""
        if self._port_file is not None:
            self.address.remove(self._port_file)

    def close(self) -> None:
        """Stop answering and remove the port file."""
        self.remove_port_file()
        self._server.close()

    def knows(self, hosts: list[str]) -> bool:
        """Whether the request's Host headers are exactly one, and it names this server."""
        name, port = _split_host(hosts[0]) if len(hosts) == 1 else ("", "")
        if not name or port not in {"", str(self.address.port)}:
            return False
        if name == self._name or is_loopback(name):
            return True
        # Bound to every address, it cannot list its names; but a rebinding page has a DNS name.
        return self._any_address and _is_address(name)

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
        waiting = {check["name"]: check["detail"] for check in self._checks() if not check["ok"]}
        return self._json(alive, {**body, "not_ready": waiting} if waiting else body)

    def _readiness(self) -> tuple[HTTPStatus, bytes, str]:
        ready, checks = self._health.ready(), self._checks()
        return self._json(ready, {"status": "ready" if ready else "not ready", "checks": checks})

    def _checks(self) -> list[dict[str, Any]]:
        return [
            {"name": check.name, "ok": check.ok, "detail": redact_text(check.detail, self._secrets)}
            for check in self._health.checks()
        ]

    def _json(self, ok: bool, body: dict[str, Any]) -> tuple[HTTPStatus, bytes, str]:  # noqa: FBT001
        origin = {"service": self.address.service, "instance": self.address.instance}
        status = HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE
        return status, json.dumps({**origin, **body}).encode(), _JSON


class _Server(ThreadServer):
    def __init__(
        self, address: tuple[str, int], owner: HealthServer, close_within_s: float
    ) -> None:
        self.owner = owner
        super().__init__(address, _Handler, name="health-server", close_within_s=close_within_s)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = ARRIVE_S

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self.command != "GET":
            self._send(HTTPStatus.METHOD_NOT_ALLOWED, b'{"error":"only GET is allowed"}', _JSON)
            return False
        return True

    def do_GET(self) -> None:
        self.server.arrived(self.connection)
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
