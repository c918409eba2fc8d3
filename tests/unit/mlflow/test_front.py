"""What the server answers before MLflow is loaded, and to whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("mlflow")

from mlflow.server import handlers
from mlflow.store.artifact import artifact_repository_registry

from gangline_mlflow import artifact_repo
from gangline_mlflow.artifact_direct import DirectArtifacts
from gangline_mlflow.config import Settings
from gangline_mlflow.front import Front, server_info
from gangline_mlflow.server import environment
from gangline_mlflow.store import GanglineStore

INFO = "/api/3.0/mlflow/server-info"
PAGES = "/ajax-api/3.0/mlflow/server-info"


@pytest.mark.parametrize("presigned", [False, True])
def test_it_is_what_mlflow_says_of_this_server(
    monkeypatch: pytest.MonkeyPatch, *, presigned: bool
) -> None:
    settings = Settings.model_validate(
        {
            "bootstrap_servers": "127.0.0.1:1", "mlflow_database": "sqlite:////tmp/mlflow.db",
            "store_url": "s3://bucket", "mlflow_presigned": presigned, "service_token": "token",
            "clickhouse_url": "http://127.0.0.1:1",
        }
    )  # fmt: skip
    for name, value in environment(settings).items():
        monkeypatch.setenv(name, value)
    store = object.__new__(GanglineStore)
    monkeypatch.setattr(handlers, "_get_tracking_store", lambda: store)
    monkeypatch.setattr(handlers, "_artifact_repo", None)
    registry = artifact_repository_registry._artifact_repository_registry
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    artifact_repo.install(DirectArtifacts if presigned else artifact_repo.TeamArtifacts)
    assert handlers.build_server_info_payload() == server_info(presigned=presigned)


def answered(front: Front, path: str, token: str = "token") -> tuple[int, Any]:
    """The status and the JSON of a request."""
    return asyncio.run(asked(front, path, token))


async def asked(front: Front, path: str, token: str = "token") -> tuple[int, Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nobody reads the body")

    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
    await front(scope, receive, send)
    return int(sent[0]["status"]), json.loads(sent[1]["body"])


async def loaded(scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": json.dumps(scope["path"]).encode()})


def test_before_mlflow_is_loaded_it_says_what_the_server_can_do() -> None:
    front = Front("token", server_info(presigned=False))
    assert not front.asked.is_set()
    assert answered(front, INFO) == (200, server_info(presigned=False))
    assert front.asked.is_set()
    # the gateway's address belongs to one team, so the pages must ask for no workspace
    one_team = {**server_info(presigned=False), "workspaces_enabled": False}
    assert answered(front, PAGES) == (200, one_team)


def test_other_requests_wait_until_mlflow_is_loaded() -> None:
    front = Front("token", {})

    async def run(opening: Callable[[Any], None]) -> list[tuple[int, Any]]:
        waiting = [asyncio.create_task(asked(front, path)) for path in ("/a", "/b")]
        await asyncio.sleep(0)
        assert front.asked.is_set()
        assert not any(task.done() for task in waiting)
        await asyncio.to_thread(opening, loaded)
        return await asyncio.gather(*waiting)

    assert asyncio.run(run(front.open)) == [(200, "/a"), (200, "/b")]
    assert answered(front, "/c") == (200, "/c")


@pytest.mark.parametrize("token", ["", "other"])
@pytest.mark.parametrize("path", ["/x", INFO])
def test_only_the_gateway_is_answered(path: str, token: str) -> None:
    front = Front("token", {})
    front.open(loaded)
    assert answered(front, path, token)[0] == 401


@pytest.mark.parametrize("path", ["/health", "/version"])
def test_probes_need_no_token(path: str) -> None:
    front = Front("token", {})
    front.open(loaded)
    assert answered(front, path, "") == (200, path)
