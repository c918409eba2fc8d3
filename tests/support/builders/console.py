"""Answers of REST as pages show them, and a browser without a screen."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
from starlette.types import ASGIApp

from gangline_console.app import create_app
from gangline_console.forms import Csrf
from gangline_schemas.api.alerts import Alert
from gangline_schemas.api.cluster import Node, NodeGpu
from gangline_schemas.api.jobs import Job
from support.fakes.console_gateway import TOKEN, FakeGateway

SECRET = "the-installation's"
AT = datetime(2026, 11, 26, 2, 0, tzinfo=UTC)


def job(job_id: str = "llama-0a1b", **changes: Any) -> Job:
    """A running job."""
    values: dict[str, Any] = {
        "job_id": job_id, "name": "llama", "team": "research", "project": None, "user": "ana",
        "state": "running", "reason": "", "waiting": None, "priority": 50, "gpus": 8,
        "gpus_allocated": 8, "attempt": 1, "restarts": 0, "submitted_at": AT, "started_at": AT,
        "ended_at": None, "elapsed_s": 90.0, "estimated_remaining_s": 3700.0, "step": 1200,
        "total_steps": 20000, "loss": 0.03127, "lr": 3e-4, "mfu": 0.41, "last_checkpoint": None,
        "failure": None, "gpu_seconds": 0.0, "metrics": {}, "gpu_utilization": None, "ranks": None,
        "nodes": [], "stopping": None, "errors": [], "spec": None,
    }  # fmt: skip
    return Job.model_validate(values | changes)


def node(**changes: Any) -> Node:
    """A node with four GPUs, all of them allocated."""
    values: dict[str, Any] = {
        "node_id": "n-1", "status": "ready", "incarnation": "1", "hostname": "host-1",
        "rack": "r-7", "block": "b-2", "cpus": 64, "memory_gb": 512, "gpus_used": 4,
        "jobs": ["llama-1"],
        "last_heartbeat": AT, "cpu_percent": 31.4, "memory_used_gb": 100.4,
        "gpus": [
            NodeGpu(index=index, model="h100", memory_gb=80, utilization=busy, memory_used_gb=None,
                    temperature_c=None)
            for index, busy in enumerate([90.0, 70.0, None, None])
        ],
    }  # fmt: skip
    return Node.model_validate(values | changes)


def alert(number: int = 17, **changes: Any) -> Alert:
    """A job has waited for long."""
    values: dict[str, Any] = {
        "number": number, "rule": "queue-wait", "subject": "llama-0a1b", "team": "research",
        "severity": "warning", "value": 7560.0, "threshold": 7200.0, "message": "llama waits",
        "cause": None, "raised_at": AT, "resolved_at": None, "silence": None, "targets": ["hook"],
    }  # fmt: skip
    return Alert.model_validate(values | changes)


@dataclass(frozen=True)
class Browser:
    """A user's browser without a screen, signed in."""

    app: ASGIApp

    def get(self, path: str, **more: Any) -> httpx.Response:
        """The answer to a GET, without following redirects."""
        return self.ask("GET", path, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        """The answer to a POST."""
        return self.ask("POST", path, **more)

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """The answer to any request."""
        headers = {"authorization": f"Bearer {TOKEN}"} | more.pop("headers", {})
        return asyncio.run(self._ask(method, path, headers=headers, **more))

    async def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://console") as client:
            return await client.request(method, path, **more)


def console(answers: dict[str, Any] | None = None) -> tuple[Browser, FakeGateway]:
    """A browser whose user is signed in to a console, and the gateway behind it."""
    gateway = FakeGateway("http://gateway", answers=dict(answers or {}))
    return Browser(create_app(gateway, SECRET)), gateway


def csrf() -> str:
    """The token of this user's forms."""
    return Csrf.of(SECRET).token(TOKEN)
