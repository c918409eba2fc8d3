"""Connections that never send a whole request take nothing that others need.

`GANGLINE_SLOW_CLIENTS` (200) is how many are open at once to each server; `make fuzz` has more.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gangline_gateway.app_context import UPLOADS_PER_USER
from gangline_gateway.user_limits import RequestLimits
from gangline_service.connections import ConnectionLimits
from gangline_service.health import Health
from gangline_service.health_server import HealthServer
from gangline_service.http_server import HttpServer
from support.attacks.slow_clients import ended, slow_clients
from support.builders.certificates import certificate
from support.builders.gateway import TOKENS, GatewayHarness, bearer, job, served
from support.fixtures.gateway_http import NLP, problem

MANY = int(os.environ.get("GANGLINE_SLOW_CLIENTS", "200"))


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> GatewayHarness:
    return GatewayHarness(tmp_path_factory.mktemp("gateway"))


@pytest.fixture(scope="module")
def client(harness: GatewayHarness) -> Iterator[httpx.Client]:
    with served(harness) as client:
        harness.configure("nlp", 64)
        yield client


@contextmanager
def another_server(harness: GatewayHarness, **settings: Any) -> Iterator[httpx.Client]:
    """The same gateway behind a server with other limits."""
    server = HttpServer("127.0.0.1", **settings)
    server.start(harness.app(server.port))
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
            yield client
    finally:
        server.close()


def test_slow_connections_leave_others_their_answers(client: httpx.Client) -> None:
    """To the gateway and to its health."""
    health = HealthServer(Health(), service="gateway", instance="i", close_within_s=0.05)
    health.start()
    try:
        with (
            slow_clients(int(client.base_url.port or 0), MANY),
            slow_clients(health.address.port, MANY),
        ):
            for _ in range(5):
                with httpx.Client(base_url=client.base_url, trust_env=False) as fresh:
                    assert fresh.get("/v1/version", headers=NLP).status_code == 200
                    assert fresh.post("/v1/training-jobs", json=job(), headers=NLP).is_success
                with httpx.Client(trust_env=False) as probe:
                    assert probe.get(f"{health.address.url}/healthz").status_code == 200
    finally:
        health.close()


def test_slow_connections_end_the_oldest_of_them_and_nobody_else(harness: GatewayHarness) -> None:
    limits = ConnectionLimits(unproven=16)
    with another_server(harness, limits=limits) as client:
        assert client.get("/v1/version", headers=NLP).status_code == 200
        with slow_clients(int(client.base_url.port or 0), 60) as slow:
            assert all(ended(connection) for connection in slow[:40])
            assert client.get("/v1/version", headers=NLP).status_code == 200
            with httpx.Client(base_url=client.base_url, trust_env=False) as fresh:
                assert fresh.get("/v1/version", headers=NLP).status_code == 200


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nX-Slow: "])
def test_a_head_that_does_not_arrive_ends_its_connection(
    harness: GatewayHarness, sent: bytes
) -> None:
    with (
        another_server(harness, head_s=0.2) as client,
        socket.create_connection(("127.0.0.1", int(client.base_url.port or 0))) as connection,
    ):
        connection.sendall(sent)
        assert ended(connection)


def test_the_head_of_a_later_request_has_its_time_too(harness: GatewayHarness) -> None:
    with another_server(harness, head_s=0.2) as client:
        address = ("127.0.0.1", int(client.base_url.port or 0))
        host = f"{address[0]}:{address[1]}"
        with socket.create_connection(address, 30) as connection:
            token = TOKENS["nlp"]
            request = f"GET /v1/version HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}"
            connection.sendall(f"{request}\r\n\r\n".encode())
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            connection.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
            assert ended(connection)


def test_a_users_connections_are_bounded(harness: GatewayHarness) -> None:
    limits = ConnectionLimits(per_user=1)
    with another_server(harness, limits=limits) as client:
        job_id = client.post("/v1/training-jobs", json=job(gpus=60), headers=NLP).json()["job_id"]
        path = f"/v1/training-jobs/{job_id}/events?follow=true"
        with client.stream("GET", path, headers=NLP) as stream:
            lines = stream.iter_lines()
            next(lines)
            with httpx.Client(base_url=client.base_url, trust_env=False) as other:
                refused = other.get("/v1/version", headers=NLP)
        problem(refused, 429, "too-many")
        assert int(refused.headers["retry-after"]) >= 1


def test_a_users_requests_are_bounded_and_the_refusal_says_when_to_come_again(
    tmp_path: Path,
) -> None:
    harness = GatewayHarness(tmp_path, deciding=False)
    harness.limits = RequestLimits(per_s=0.001, burst=2)
    with served(harness) as client:
        for _ in range(2):
            assert client.get("/v1/version", headers=NLP).status_code == 200
        refused = client.get("/v1/version", headers=NLP)
        problem(refused, 429, "too-many")
        assert int(refused.headers["retry-after"]) >= 1
        admin = {"Authorization": f"Bearer {TOKENS['admin']}"}
        assert client.get("/v1/version", headers=admin).status_code == 200


def test_uploads_that_trickle_in_hold_their_users_slots_alone(
    client: httpx.Client, harness: GatewayHarness
) -> None:
    harness.configure("vision", 8)
    address = ("127.0.0.1", int(client.base_url.port or 0))
    kind = {"Content-Type": "application/gzip"}

    def upload(team: str) -> httpx.Response:
        headers = bearer(team) | kind
        path = f"/v1/code-bundles?team={team}"
        return client.post(path, content=f"of {team}".encode(), headers=headers)

    head = (
        f"POST /v1/code-bundles?team=nlp HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n"
        f"Authorization: Bearer {TOKENS['nlp']}\r\nContent-Type: application/gzip\r\n"
        "Content-Length: 60000000\r\n\r\nx"
    )
    with ExitStack() as open_ones:

        def trickle() -> None:
            slow = open_ones.enter_context(socket.create_connection(address, 30))
            slow.sendall(head.encode())

        def all_held() -> bool:
            """One that came while `upload` had a slot was refused, so another one comes."""
            if upload("nlp").status_code == 429:
                return True
            trickle()
            return False

        for _ in range(UPLOADS_PER_USER):
            trickle()
        harness.wait(all_held)
        assert upload("vision").is_success
    harness.wait(lambda: upload("nlp").is_success)


def test_a_handshake_that_does_not_arrive_ends_its_connection_and_others_speak_tls(
    harness: GatewayHarness, tmp_path: Path
) -> None:
    server = HttpServer("127.0.0.1", limits=ConnectionLimits(unproven=16), head_s=1.0)
    tls = certificate(tmp_path, "gateway")
    server.start(harness.app(server.port), tls=tls)
    try:
        with slow_clients(server.port, 40) as slow:
            assert ended(slow[0])
            trusted = ssl.create_default_context(cafile=tls[0])
            with httpx.Client(verify=trusted, trust_env=False) as client:
                url = f"https://127.0.0.1:{server.port}/v1/version"
                for _ in range(3):
                    assert client.get(url, headers=NLP).status_code == 200
            assert all(ended(connection) for connection in slow)
    finally:
        server.close()
