"""A cloud's metadata service on loopback: it answers as the providers document it."""

from __future__ import annotations

import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit


class MetadataServer:
    """AWS, GCP and Azure at once; what they say is set by the test.

    `spot_action`, `preempted`, `maintenance_event`, `scheduled_events`: the documented values.
    `broken`: answer everything with 500.
    """

    def __init__(self) -> None:
        self.spot_action: dict[str, str] | None = None
        self.preempted = "FALSE"
        self.maintenance_event = "NONE"
        self.scheduled_events: list[dict[str, object]] = []
        self.broken = False
        self.tokens: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server._get(self)

            def do_PUT(self) -> None:
                server._put(self)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def forget_tokens(self) -> None:
        """As when their time is over."""
        self.tokens.clear()

    def _put(self, request: BaseHTTPRequestHandler) -> None:
        ttl = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if self.broken or request.path != "/latest/api/token" or not 1 <= int(ttl) <= 21_600:
            _answer(request, 500 if self.broken else 400)
            return
        self.tokens.append(secrets.token_urlsafe(16))
        _answer(request, 200, self.tokens[-1])

    def _get(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        first = url.path.split("/")[1]
        if self.broken:
            _answer(request, 500)
        elif first == "latest":
            self._aws(request, url.path)
        elif first == "computeMetadata":
            self._gcp(request, url.path)
        else:
            self._azure(request, url.path, url.query)

    def _aws(self, request: BaseHTTPRequestHandler, path: str) -> None:
        if request.headers.get("X-aws-ec2-metadata-token") not in self.tokens:
            _answer(request, 401)
        elif path == "/latest/meta-data/spot/instance-action" and self.spot_action is not None:
            _answer(request, 200, json.dumps(self.spot_action))
        else:
            _answer(request, 404)

    def _gcp(self, request: BaseHTTPRequestHandler, path: str) -> None:
        found = {"preempted": self.preempted, "maintenance-event": self.maintenance_event}
        name = path.removeprefix("/computeMetadata/v1/instance/")
        if request.headers.get("Metadata-Flavor") != "Google":
            _answer(request, 403)
        elif name in found:
            _answer(request, 200, found[name], {"Metadata-Flavor": "Google"})
        else:
            _answer(request, 404)

    def _azure(self, request: BaseHTTPRequestHandler, path: str, query: str) -> None:
        if request.headers.get("Metadata") != "true" or "api-version=" not in query:
            _answer(request, 400)
        elif path == "/metadata/instance/compute/name":
            _answer(request, 200, "FrontEnd_IN_0")
        elif path == "/metadata/scheduledevents":
            listed = {"DocumentIncarnation": 1, "Events": self.scheduled_events}
            _answer(request, 200, json.dumps(listed))
        else:
            _answer(request, 404)


def _answer(
    request: BaseHTTPRequestHandler,
    status: int,
    body: str = "",
    headers: dict[str, str] | None = None,
) -> None:
    data = body.encode()
    request.send_response(status)
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)
