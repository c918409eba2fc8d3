"""The runs that the fast lane remembers as active; its answers are in tests/integration."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import Future
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

pytest.importorskip("mlflow")

from gangline_mlflow import lane as module
from gangline_mlflow.guard import WORKSPACE
from gangline_mlflow.history import MOST_POINTS
from gangline_mlflow.lane import FastLane
from gangline_schemas.events.metrics import MetricLogged

LOG, DELETE = "/api/2.0/mlflow/runs/log-metric", "/api/2.0/mlflow/runs/delete"
ARTIFACT = "/api/2.0/mlflow-artifacts/artifacts/1/runs/delete"


class Server:
    """A lane before a store that finds every run active, and an MLflow that does nothing."""

    def __init__(self) -> None:
        self.looked_up: list[str] = []
        self.looking, self.may_look = threading.Event(), threading.Event()
        self.may_delete = asyncio.Event()
        self.may_look.set()
        self.may_delete.set()
        self.points = self
        store: Any = self
        self.lane = FastLane(self.mlflow, store)

    async def mlflow(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.may_delete.wait()

    def assert_active(self, run_id: str) -> None:
        self.looked_up.append(run_id)
        self.looking.set()
        assert self.may_look.wait(30)

    def send(self, event: MetricLogged) -> Future[None]:
        MetricLogged.model_validate(event.model_dump())
        done: Future[None] = Future()
        done.set_result(None)
        return done

    async def log(self, run_id: str = "r1") -> None:
        point = {"run_id": run_id, "key": "loss", "value": 0.5, "timestamp": 1}
        assert await self.ask(LOG, json.dumps(point).encode()) == b"{}"

    async def ask(self, path: str, body: bytes = b"") -> bytes:
        headers = [(WORKSPACE, b"nlp"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            sent.append(message)

        await self.lane({**scope, "query_string": b""}, receive, send)
        return b"".join(message.get("body", b"") for message in sent)


def test_a_run_is_looked_up_once_until_runs_may_have_ended() -> None:
    async def harness() -> list[str]:
        server = Server()
        for path in (None, ARTIFACT, "/api/2.0/mlflow/runs/set-tag", DELETE):
            if path is not None:
                await server.ask(path)
            await server.log()
            await server.log()
        return server.looked_up

    assert asyncio.run(harness()) == ["r1", "r1"]


def test_a_run_found_active_beside_a_delete_is_not_remembered() -> None:
    async def harness() -> int:
        server = Server()
        server.may_delete.clear()
        delete = asyncio.create_task(server.ask(DELETE))
        await asyncio.sleep(0)
        await server.log()  # beside the delete
        server.may_look.clear()
        server.looking.clear()
        log = asyncio.create_task(server.log())
        await asyncio.to_thread(server.looking.wait, 30)
        server.may_delete.set()
        await delete
        server.may_look.set()
        await log  # found before the delete ended
        await server.log()
        return len(server.looked_up)

    assert asyncio.run(harness()) == 3


def test_runs_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RUNS_KEPT", 3)

    async def harness() -> int:
        server = Server()
        for number in range(10):
            await server.log(f"r{number}")
        return len(server.lane._active)

    assert 0 < asyncio.run(harness()) <= 3


class LongHistory:
    """A run with so many points; notes how many were asked for."""

    def __init__(self, points: int) -> None:
        self.points = points
        self.limits: list[int] = []

    def readable(self, _: object) -> LongHistory:
        return self

    def of_run_json(self, _run: str, _name: str, offset: int, limit: int) -> list[bytes]:
        self.limits.append(limit)
        return [b"{}"] * max(0, min(limit, self.points - offset))


@pytest.mark.parametrize("query", [b"", b"&max_results=5000000"])
def test_a_history_without_a_limit_comes_in_pages(query: bytes) -> None:
    history: Any = LongHistory(MOST_POINTS + 7)
    lane = FastLane(Server().mlflow, history)
    asked = b"run_id=r1&metric_key=loss" + query
    first = json.loads(asyncio.run(lane._history("nlp", b"", asked)))
    assert len(first["metrics"]) == MOST_POINTS
    asked += b"&page_token=" + first["next_page_token"].encode()
    rest = json.loads(asyncio.run(lane._history("nlp", b"", asked)))
    assert len(rest["metrics"]) == 7
    assert "next_page_token" not in rest
    assert history.limits == [MOST_POINTS + 1] * 2


def test_a_history_within_the_limit_comes_whole() -> None:
    history: Any = LongHistory(30_000)
    lane = FastLane(Server().mlflow, history)
    found = json.loads(asyncio.run(lane._history("nlp", b"", b"run_id=r1&metric_key=loss")))
    assert len(found["metrics"]) == 30_000
    assert "next_page_token" not in found
