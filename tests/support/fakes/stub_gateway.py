"""A small HTTP server that speaks the documented JSON of the gateway, for unit tests of clients."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest

TOKEN = "t0ken-of-the-stub"
NOW = "2026-11-21T10:00:00Z"


@dataclass(frozen=True)
class Request:
    """One request as the server saw it."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """JSON with a status, a page, or the raw text of an event stream that then breaks off."""

    content: Any = None
    status: int = 200
    stream: str | None = None
    page: str | None = None
    retry_after: str = ""


Route = Callable[[Request], Reply]


@dataclass
class Stub:
    """Routes by (method, path); everything asked is kept."""

    url: str = ""
    routes: dict[tuple[str, str], Route] = field(default_factory=dict)
    asked: list[Request] = field(default_factory=list)

    def on(self, method: str, path: str, *replies: Reply | Any) -> None:
        """Answer with these one after the other; the last one stays."""
        left = [item if isinstance(item, Reply) else Reply(item) for item in replies]

        def answer(_asked: Request) -> Reply:
            return left.pop(0) if len(left) > 1 else left[0]

        self.routes[method, path] = answer

    def bodies(self, method: str, path: str) -> list[Any]:
        return [item.json for item in self.asked if (item.method, item.path) == (method, path)]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    stub: Stub


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        stub = cast("_Server", self.server).stub
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        asked = Request(
            self.command, parts.path, parse_qs(parts.query),
            {name.lower(): value for name, value in self.headers.items()}, self.rfile.read(length),
        )  # fmt: skip
        stub.asked.append(asked)
        free = asked.path.startswith("/session/device")  # whose user is not known yet
        if not free and asked.headers.get("authorization") != f"Bearer {TOKEN}":
            self._send(problem(401, "unauthorized", "give a token"))
            return
        route = stub.routes.get((asked.method, asked.path))
        missing = problem(404, "no-such-route", "there is no such route")
        self._send(missing if route is None else route(asked))

    do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 -- names of the base class

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        if reply.retry_after:
            self.send_header("Retry-After", reply.retry_after)
        if reply.stream is not None:
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(reply.stream.encode())
            self.close_connection = True
            return
        data = json.dumps(reply.content).encode()
        if reply.page is not None:
            self.send_header("Content-Type", "text/html; charset=utf-8")
            data = reply.page.encode()
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@contextmanager
def serving() -> Iterator[Stub]:
    """A stub on a free port of this machine."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.stub = Stub(url=f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def stub() -> Iterator[Stub]:
    with serving() as found:
        yield found


def problem(
    status: int, code: str, detail: str, errors: list[dict[str, str]] | None = None
) -> Reply:
    """A problem document (RFC 9457)."""
    content = {
        "type": f"urn:gangline:problem:{code}",
        "title": code,
        "status": status,
        "detail": detail,
        "instance": "urn:gangline:request:0",
        "errors": errors or [],
    }
    return Reply(content, status)


def event(kind: str, data: Any, cursor: str | None = None) -> str:
    """The text of one server-sent event."""
    head = f"id: {cursor}\n" if cursor else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n"


def job(state: str = "running", **fields: Any) -> dict[str, Any]:
    """A job as GET /v1/training-jobs/{id} gives it."""
    return {
        "job_id": "llama-sft-0123456789", "name": "llama-sft", "team": "nlp", "project": None,
        "user": "ada", "state": state, "reason": "", "waiting": None, "priority": 50, "gpus": 2,
        "gpus_allocated": 2, "attempt": 1, "restarts": 0, "submitted_at": NOW, "started_at": NOW,
        "ended_at": None,
        "elapsed_s": 75.0, "estimated_remaining_s": 30.0, "step": 18, "total_steps": 30,
        "loss": 2.5712345, "lr": 0.004, "mfu": 0.312, "last_checkpoint": None, "failure": None,
        "gpu_seconds": 0.0, "metrics": {"loss": 2.5712345}, "tokens_per_s": 12345.6,
        "gpu_utilization": None, "ranks": None,
        "nodes": [{"node_id": "node-0", "gpus": [0, 1], "first_rank": 0}],
        "stopping": None, "errors": [], "spec": None, "a_field_of_tomorrow": 1,
    } | fields  # fmt: skip


def incident(**fields: Any) -> dict[str, Any]:
    """One of those of GET /v1/incidents."""
    return {
        "team": "nlp", "job_id": "llama-sft-with-a-rather-long-name-0123456789", "attempt": 1,
        "outcome": "recovered",
        "failure_class": "process", "cause": "process", "action": "restart",
        "message": f"rank 1 on {'node-' * 8}2 was ended by SIGKILL", "first_rank": 1,
        "node_id": "node-2", "avoid_nodes": [], "review": False, "failures": 1, "world_size": 8,
        "last_step": 97, "committed_step": 60, "resume_step": 60,
        "failed_at": "2026-11-21T10:00:00Z", "next_attempt": 2,
        "allocated_at": "2026-11-21T10:00:00.250Z", "running_at": "2026-11-21T10:00:01.500Z",
        "first_step_at": "2026-11-21T10:02:04Z", "closed_at": "2026-11-21T10:02:05Z",
        "recover_s": 124.0, "work_lost_s": 40.0, "down_s": 124.0, "lost_gpu_s": 1312.0,
        "later": "a field of a newer gateway",
    } | fields  # fmt: skip


SPEC = {"name": "llama-sft", "team": "nlp", "command": ["true"], "resources": {"gpus": 2}}
NO_INCIDENTS = {
    "incidents": [], "notices": [], "cursor": None,
    "totals": {
        "incidents": 0, "recovered": 0, "recover_median_s": None, "recover_p95_s": None,
        "lost_gpu_s": 0.0, "by_class": [], "by_node": [], "by_job": [], "by_shard": [],
    },
}  # fmt: skip
FAILURE = {
    "attempt": 2, "cause": "user_error", "action": "fail",
    "message": "Traceback (most recent call last):\nZeroDivisionError: division by zero",
    "first_rank": 1, "node_id": "node-1", "exit_code": 1, "signal": None,
    "restarts_used": 0, "restarts_max": 3, "failed_at": NOW,
}  # fmt: skip
TEAM = {
    "team": "nlp", "parent": None, "depth": 0, "gpu_limit": 8, "gpu_guarantee": 4,
    "borrow_limit": 0, "weight": 1.0, "surplus": None, "gpu_types": [],
    "gpu_hours_per_month": None, "job_limit": 10_000, "gpus_used": 2, "gpus_borrowed": 0,
    "jobs_running": 1, "jobs_pending": 0, "gpu_seconds": 4321.0, "month": "2026-11",
    "gpu_hours_this_month": 1.5, "out_of_budget": False,
}  # fmt: skip
NODE = {
    "node_id": "node-0", "status": "ready", "incarnation": "i1", "hostname": "h", "rack": "rack-0",
    "block": "block-0", "cpus": 2.0, "memory_gb": 8.0, "gpus_used": 2,
    "jobs": ["llama-sft-0123456789"],
    "gpus": [
        {"index": i, "model": "cpu", "memory_gb": 1.0, "utilization": None, "memory_used_gb": None,
         "temperature_c": None} for i in range(4)
    ],
    "last_heartbeat": NOW, "cpu_percent": 12.5, "memory_used_gb": 1.0,
}  # fmt: skip
