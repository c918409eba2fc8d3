"""What tests of the gateway over real HTTP ask and read in common."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gangline_schemas.events.steps import WorkerStep
from gateway_scene import GatewayScene, bearer, job, served

ADMIN, NLP, VISION, SERVICE = (bearer(who) for who in ("admin", "nlp", "vision", "svc"))
PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> GatewayScene:
    return GatewayScene(tmp_path_factory.mktemp("gateway"))


@pytest.fixture(scope="module")
def http_client(scene: GatewayScene) -> Iterator[httpx.Client]:
    """A client of the scene's gateway; nlp may have 64 GPUs, vision 8."""
    with served(scene) as client:
        scene.configure("nlp", 64)
        scene.configure("vision", 8)
        yield client


def submit(client: httpx.Client, headers: dict[str, str] = NLP, **fields: Any) -> str:
    answer = client.post("/v1/training-jobs", json=job(**fields), headers=headers)
    assert answer.status_code == 201, answer.text
    job_id: str = answer.json()["job_id"]
    return job_id


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == PROBLEM
    found: dict[str, Any] = answer.json()
    assert found["type"] == f"urn:gangline:problem:{code}"
    assert found["status"] == status
    assert found["instance"].endswith(answer.headers["x-trace-id"])
    return found


def events(lines: Iterator[str]) -> Iterator[tuple[str, str, Any]]:
    """(id, event, data) of a stream."""
    last_id, kind, data = "", "", ""
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "id":
            last_id = value
        elif name == "event":
            kind = value
        elif name == "data":
            data = value
        elif not line and data:
            yield last_id, kind, json.loads(data)
            kind, data = "", ""


def step(run_id: str, first: int, count: int = 1) -> WorkerStep:
    steps = tuple(range(first, first + count))
    loss = tuple(1 / (1 + index) for index in steps)
    return WorkerStep(
        run_id=run_id, team="nlp", attempt=1, rank=0, step=steps,
        time_ms=tuple(1000 * index for index in steps), metrics={"loss": loss},
    )  # fmt: skip
