"""The jobs and nodes of a gateway, over HTTP: for the processes beside Kubernetes."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from gangline_schemas import job_ids
from gangline_schemas.api.base import Answer
from gangline_schemas.api.cluster import Node
from gangline_schemas.api.jobs import Job

_JOB_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
ENDED = {"succeeded", "failed", "cancelled"}


class JobGateway:
    """`jobs` by id, `submitted`: how often each id was created, `cancelled`: asked for.

    `nodes`: the status of each node; `drains`: the bodies of requests about them.
    `away`: all requests are answered with 503.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.submitted: dict[str, int] = {}
        self.cancelled: list[str] = []
        self.priorities: dict[str, int] = {}
        self.nodes: dict[str, str] = {}
        self.drains: list[dict[str, Any]] = []
        self.away = False
        self.lock = threading.Lock()

    def __enter__(self) -> Self:
        owner = self

        class Handler(_Handler):
            gateway = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def set(self, state: str, *job_ids_: str) -> None:
        """Give jobs (default: all that have not ended) a state."""
        with self.lock:
            for job_id in job_ids_ or tuple(self.jobs):
                if self.jobs[job_id]["state"] not in ENDED:
                    self.jobs[job_id]["state"] = state

    def submit(self, spec: dict[str, Any], key: str) -> tuple[int, Any]:
        if spec["name"].startswith("rejected"):
            return 422, {"detail": "the team has no quota"}
        job_id = job_ids.job_id(spec["name"], job_ids.suffix_of_key(spec["team"], key))
        with self.lock:
            if job_id in self.jobs:
                return 200, self.jobs[job_id]
            self.submitted[job_id] = self.submitted.get(job_id, 0) + 1
            self.jobs[job_id] = fields_of_job(job_id, spec)
            return 201, self.jobs[job_id]

    def answer(
        self, method: str, path: str, query: dict[str, list[str]], body: Any, key: str
    ) -> Any:
        parts = path.strip("/").split("/")[2:]
        if method == "POST" and not parts:
            return self.submit(body, key)
        if not parts:
            with self.lock:
                jobs = [job for job in self.jobs.values() if job["state"] in query["state"]]
            return 200, {"jobs": jobs, "cursor": None}
        with self.lock:
            job = self.jobs.get(parts[0])
            if job is None:
                known = _JOB_ID.fullmatch(parts[0])
                return 404 if known else 422, {"detail": "no such job, or no id of one"}
            if method == "GET":
                return 200, job
            if job["state"] in ENDED:
                return 409, {"detail": "the job has ended"}
            if parts[1] == "cancel":
                self.cancelled.append(parts[0])
                job["state"] = "cancelled"
            else:
                self.priorities[parts[0]] = body["priority"]
            return 202, job

    def about_nodes(self, parts: list[str], body: Any) -> Any:
        with self.lock:
            if parts:
                self.drains.append(body)
                wanted = "draining" if body["move_jobs"] else "cordoned"
                self.nodes[parts[0]] = wanted if body["drain"] else "ready"
                return 202, {"node_id": parts[0], "status": self.nodes[parts[0]]}
            empty = {**_required(Node), "gpus": [], "jobs": [], "gpus_used": 0}
            texts = dict.fromkeys(
                ("why", "straggler", "incarnation", "hostname", "rack", "block"), ""
            )
            numbers = {"cpus": 8, "memory_gb": 8}
            more = {"isolation": "none", "runs_images": False}
            nodes = [
                {**empty, **texts, **numbers, **more, "node_id": name, "status": status}
                for name, status in self.nodes.items()
            ]
            return 200, {"nodes": nodes, "cursor": None}


def fields_of_job(job_id: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A new job as the gateway answers it."""
    return {
        **_required(Job),
        "job_id": job_id,
        "name": spec["name"],
        "team": spec["team"],
        "user": "kubernetes",
        "state": "pending",
        "reason": "waits for admission",
        "priority": 50,
        "gpus": spec["resources"]["gpus"],
        "gpus_allocated": 0,
        "attempt": 0,
        "restarts": 0,
        "submitted_at": "2026-11-26T12:00:00Z",
        "gpu_seconds": 0,
        "metrics": {},
        "nodes": [],
        "errors": [],
        "review": [],
        "spec": spec,
    }


def _required(model: type[Answer]) -> dict[str, Any]:
    """Each field without a default, as null."""
    return {name: None for name, field in model.model_fields.items() if field.is_required()}


class _Handler(BaseHTTPRequestHandler):
    gateway: JobGateway
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # an operator was killed
            super().handle()

    def _do(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        text = self.rfile.read(length)
        if len(text) < length:  # an operator was killed
            return
        at = urlsplit(self.path)
        if self.gateway.away:
            status, answer = 503, {"detail": "away"}
        elif at.path.startswith("/v1/nodes"):
            status, answer = self.gateway.about_nodes(
                at.path.split("/")[3:], json.loads(text or b"null")
            )
        else:
            status, answer = self.gateway.answer(
                self.command,
                at.path,
                parse_qs(at.query),
                json.loads(text or b"null"),
                self.headers.get("Idempotency-Key", ""),
            )
        raw = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    do_GET = do_POST = _do  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass
