"""A small HTTP server with the part of MLflow's REST that the tracking SDK uses.

It keeps points as the platform does: equal rows are one row. It can stop and start again on its
port, and lose answers after it did what was asked.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "t0ken-of-the-tracker"
TEAM = "/mlflow/teams/nlp/api/2.0"
SERVER_INFO = "/mlflow/teams/nlp/api/3.0/mlflow/server-info"

Point = tuple[str, int, int, object]
"""Name, step, Unix ms, value as JSON has it."""


@dataclass
class StoredRun:
    """One run as the server has it."""

    info: dict[str, Any]
    tags: dict[str, str]
    params: dict[str, str] = field(default_factory=dict)
    points: set[Point] = field(default_factory=set)

    def steps(self, name: str) -> list[tuple[int, object]]:
        """(step, value) of one metric, in order."""
        return sorted((step, value) for key, step, _, value in self.points if key == name)  # type: ignore[type-var]


@dataclass
class TrackingStub:
    """The server's state; `start` and `stop` may be called again and again."""

    url: str = ""
    teams: tuple[str, ...] = ("nlp",)
    experiments: dict[str, str] = field(default_factory=dict)
    runs: dict[str, StoredRun] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    lose: int = 0
    """So many answers are lost from now on."""
    bad_name: str = ""
    """A batch with this metric is refused."""
    faulty_name: str = ""
    """The server fails on each batch that has this text."""
    page: str = ""
    """Answer everything with this instead, as a proxy may."""
    page_status: int = 200
    answers: threading.Event = field(default_factory=threading.Event)
    """Cleared: requests are taken, and answered once it is set again."""
    _server: ThreadingHTTPServer | None = None
    _port: int = 0

    def start(self) -> None:
        """Serve, on the same port as before."""
        self._server = _Server(("127.0.0.1", self._port), _Handler)
        self._server.stub = self
        self._port = self._server.server_address[1]
        self.answers.set()
        self.url = f"http://127.0.0.1:{self._port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections, and break those that are open."""
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    @property
    def run(self) -> StoredRun:
        """The only run."""
        (found,) = self.runs.values()
        return found

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        """What MLflow would say."""
        if path == "/v1/whoami":
            return 200, {"name": "ada", "role": "member", "teams": [*self.teams]}
        if path == SERVER_INFO:
            return 200, {"store_type": "SqlStore", "workspaces_enabled": True}
        assert path.startswith(TEAM), path
        route = path.removeprefix(TEAM)
        if route.startswith("/mlflow-artifacts/artifacts/") and method == "PUT":
            self.files[unquote(route.removeprefix("/mlflow-artifacts/artifacts/"))] = body
            return 200, {}
        try:
            asked = json.loads(body) if body else query
        except ValueError:
            return 400, {"error_code": "BAD_REQUEST", "message": "the body is not JSON"}
        return getattr(self, route.removeprefix("/mlflow/").replace("/", "_").replace("-", "_"))(
            asked
        )  # type: ignore[no-any-return]

    def experiments_get_by_name(self, asked: Any) -> tuple[int, Any]:
        found = self.experiments.get(asked["experiment_name"])
        return (200, {"experiment": {"experiment_id": found}}) if found else _missing()

    def experiments_create(self, asked: Any) -> tuple[int, Any]:
        made = self.experiments.setdefault(asked["name"], str(len(self.experiments) + 1))
        return 200, {"experiment_id": made}

    def runs_create(self, asked: Any) -> tuple[int, Any]:
        run_id = uuid.uuid4().hex
        place = f"mlflow-artifacts:/{asked['experiment_id']}/{run_id}/artifacts"
        info = {"run_id": run_id, "status": "RUNNING", "artifact_uri": place, **asked}
        tags = {one["key"]: one["value"] for one in info.pop("tags")}
        self.runs[run_id] = StoredRun(info, tags)
        return 200, {"run": {"info": info}}

    def runs_search(self, asked: Any) -> tuple[int, Any]:
        tag, _, value = asked["filter"].removeprefix("tags.").partition(" = ")
        found = [
            run for run in self.runs.values() if run.tags.get(tag.strip("`")) == value.strip("'")
        ]
        return 200, {"runs": [{"info": run.info} for run in found]} if found else {}

    def runs_get(self, asked: Any) -> tuple[int, Any]:
        run = self.runs.get(asked["run_id"])
        return (200, {"run": {"info": run.info}}) if run else _missing()

    def runs_update(self, asked: Any) -> tuple[int, Any]:
        self.runs[asked["run_id"]].info.update(asked)
        return 200, {}

    def runs_log_batch(self, asked: Any) -> tuple[int, Any]:
        run = self.runs.get(asked["run_id"])
        if run is None:
            return _missing()
        if self.faulty_name and self.faulty_name in json.dumps(asked):
            return 500, {"error_code": "INTERNAL_ERROR", "message": "a fault"}
        metrics = asked.get("metrics", [])
        assert len(metrics) <= 1000
        if any(one["key"] == self.bad_name for one in metrics):
            return 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": "no such name"}
        for one in asked.get("params", []):
            if run.params.get(one["key"], one["value"]) != one["value"]:
                message = "changed\nwith more text"
                return 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": message}
        run.points |= {(m["key"], m["step"], m["timestamp"], m["value"]) for m in metrics}
        run.params |= {one["key"]: one["value"] for one in asked.get("params", [])}
        run.tags |= {one["key"]: one["value"] for one in asked.get("tags", [])}
        return 200, {}


def _missing() -> tuple[int, Any]:
    return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "there is no such thing"}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    stub: TrackingStub


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _answer(self) -> None:
        stub = cast("_Server", self.server).stub
        parts = urlsplit(self.path)
        stub.requests.append(f"{self.command} {parts.path}")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = self._body()
        stub.answers.wait()
        if stub._server is not self.server or self.server.socket.fileno() < 0:
            self.close_connection = True  # stopped: a connection that was open before
            return
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            status, content = 401, {"detail": "give a token"}
        elif stub.page:
            status, content = stub.page_status, {}
        else:
            status, content = stub.answer(self.command, parts.path, query, body)
        if stub.lose:
            stub.lose -= 1
            self.close_connection = True
            return
        data = stub.page.encode() or json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = _answer  # noqa: N815 -- names of the base class

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@contextmanager
def tracking_stub() -> Iterator[TrackingStub]:
    """A server on a free port of this machine."""
    stub = TrackingStub()
    stub.start()
    try:
        yield stub
    finally:
        stub.stop()
