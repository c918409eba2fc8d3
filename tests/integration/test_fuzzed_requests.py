"""Whatever is sent to a port of a service, the service is up and answers others as it did before.

`GANGLINE_FUZZ_REQUESTS` (600) is how many requests are drawn for all servers together, and
`GANGLINE_FUZZ_SEED` from which seed; `make fuzz` sends 10,000 and more.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import httpx
import pytest

from gangline_service.health import Health
from gangline_service.health_server import HealthServer
from gangline_service.http_server import HttpServer
from gangline_service.tokens import TokenBook
from gangline_tracker.http import ClickHouseEndpoint
from gangline_tracker.reader import Answer, QueryReader
from gangline_tracker.sql_guard import guard
from support.attacks.fuzzed_requests import FuzzedRequests, Operation, status_of
from support.builders.gateway import TOKENS, GatewayHarness, bearer, job, served
from support.builders.rest_document import rest_document

REQUESTS = int(os.environ.get("GANGLINE_FUZZ_REQUESTS", "600"))
SEED = int(os.environ.get("GANGLINE_FUZZ_SEED", "1"))
LOOK_EACH = 50
FAILURES = frozenset({500, 502, 504})


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> GatewayHarness:
    return GatewayHarness(tmp_path_factory.mktemp("gateway"))


@pytest.fixture(scope="module")
def client(harness: GatewayHarness) -> Iterator[httpx.Client]:
    with served(harness) as client:
        harness.configure("nlp", 64)
        harness.join("node-0", gpus=4)
        client.post("/v1/training-jobs", json=job(), headers=bearer("nlp"))
        yield client


def operations() -> list[Operation]:
    paths = rest_document()["paths"]
    return [(method.upper(), path) for path, found in paths.items() for method in found]


def bombard(
    port: int, wanted: list[Operation], share: float, look: Callable[[], None]
) -> Counter[int | None]:
    """Send the share of the requests; `look` asks now and then as others do."""
    drawn = FuzzedRequests(SEED, f"127.0.0.1:{port}", wanted, [*TOKENS.values(), "nobody"])
    seen: Counter[int | None] = Counter()
    for number in range(max(1, int(REQUESTS * share))):
        request = drawn.draw()
        status = status_of(port, request)
        assert status not in FAILURES, f"seed {SEED}, request {number}: {status} to {request!r}"
        seen[status] += 1
        if number % LOOK_EACH == 0:
            look()
    look()
    return seen


def test_the_gateway_and_the_deciders_behind_it_are_up(
    client: httpx.Client, harness: GatewayHarness
) -> None:
    def look() -> None:
        assert harness.failures == [], "a decider has ended"
        assert client.get("/v1/training-jobs", headers=bearer("admin")).status_code == 200
        assert client.get("/v1/queue", headers=bearer("nlp")).status_code == 200

    seen = bombard(int(client.base_url.port or 0), operations(), 0.7, look)
    assert {200, 400, 401, 422} <= set(seen), seen
    made = client.post("/v1/training-jobs", json=job(name="after"), headers=bearer("nlp"))
    assert made.status_code == 201
    assert harness.context.streams.open == 0


def test_the_health_server_is_up() -> None:
    server = HealthServer(Health(), service="gateway", instance="i", close_within_s=0.05)
    server.start()

    def look() -> None:
        assert httpx.get(f"{server.address.url}/healthz", trust_env=False).status_code == 200

    try:
        wanted = [("GET", path) for path in ("/healthz", "/readyz", "/metrics", "/{team}")]
        assert bombard(server.address.port, wanted, 0.1, look)[200]
    finally:
        server.close()


class NoRows:
    """The embedded engine without rows; queries are guarded as ever."""

    def query(self, text: str, teams: frozenset[str] | None, **_: object) -> Answer:
        return Answer(b"26.9\tUTC\n", guard(text, teams).format or "TabSeparated")


@contextmanager
def tracker(harness: GatewayHarness) -> Iterator[int]:
    reader = cast("QueryReader", NoRows())
    endpoint = ClickHouseEndpoint(reader, reader, TokenBook.load(harness.tokens_file))
    server = HttpServer("127.0.0.1")
    server.start(endpoint.app)
    try:
        yield server.port
    finally:
        server.close()


def test_the_trackers_sql_is_up(harness: GatewayHarness) -> None:
    with tracker(harness) as port:

        def look() -> None:
            answer = httpx.post(
                f"http://127.0.0.1:{port}/", content="SELECT 1", headers=bearer("nlp"),
                trust_env=False,
            )  # fmt: skip
            assert answer.status_code == 200

        wanted = [("POST", "/"), ("GET", "/?query=SELECT+1"), ("GET", "/ping")]
        assert bombard(port, wanted, 0.1, look)[403]
