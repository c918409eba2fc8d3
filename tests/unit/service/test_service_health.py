"""Health over real HTTP: liveness, readiness with reasons, metrics, and who may ask."""

from __future__ import annotations

import http.client
import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline_service import telemetry
from gangline_service.bound_address import BoundAddress
from gangline_service.health import Health
from gangline_service.health_server import HealthServer

SECRET = "correct-horse-battery"


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def health(clock: _Clock) -> Health:
    return Health(beat_timeout_s=5, clock=clock)


@pytest.fixture
def server(health: Health) -> Iterator[HealthServer]:
    server = HealthServer(
        health,
        service="quota",
        instance="box-1",
        exposition=telemetry.start("quota", "box-1").exposition,
        secrets=[SECRET],
        close_within_s=0.01,
    )
    server.start()
    yield server
    server.close()


def _ask(
    server: HealthServer, path: str, method: str = "GET", host: str | None = None
) -> tuple[int, bytes, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.address.port, timeout=10)
    connection.putrequest(method, path, skip_host=host is not None)
    if host:
        connection.putheader("Host", host)
    connection.endheaders()
    response = connection.getresponse()
    answer = response.status, response.read(), response.headers.get("Content-Type", "")
    connection.close()
    return answer


def test_liveness_follows_the_beat(server: HealthServer, health: Health, clock: _Clock) -> None:
    assert _ask(server, "/healthz")[0] == 200
    clock.now += 5.1
    status, body, _ = _ask(server, "/healthz")
    assert status == 503
    assert json.loads(body) == {
        "service": "quota",
        "instance": "box-1",
        "status": "stalled",
        "beat_age_s": 5.1,
        "beat_timeout_s": 5,
    }
    health.beat()
    assert _ask(server, "/healthz")[0] == 200


def test_ready_only_when_every_check_is(server: HealthServer, health: Health) -> None:
    assert _ask(server, "/readyz")[0] == 503
    health.expect("bus", "store")
    health.set("bus", ok=True)
    status, body, _ = _ask(server, "/readyz")
    assert status == 503
    assert json.loads(body)["checks"] == [
        {"name": "bus", "ok": True, "detail": ""},
        {"name": "store", "ok": False, "detail": "not reported yet"},
    ]
    health.set("store", ok=True)
    assert health.ready()
    assert _ask(server, "/readyz")[0] == 200
    health.set("bus", ok=False, detail="no broker")
    assert _ask(server, "/readyz")[0] == 503


def test_detail_is_redacted(server: HealthServer, health: Health) -> None:
    health.set("bus", ok=False, detail=f"refused {SECRET} password=other-secret")
    body = _ask(server, "/readyz")[1].decode()
    assert SECRET not in body
    assert "other-secret" not in body


def test_metrics_are_prometheus_text(server: HealthServer) -> None:
    status, body, content_type = _ask(server, "/metrics")
    assert status == 200
    assert content_type.startswith("text/plain")
    assert b"process_cpu_seconds_total" in body


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost:1", "", "["])
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_wrong_host_is_refused(server: HealthServer, host: str, path: str) -> None:
    status, body, _ = _ask(server, path, host=host)
    assert status == 403
    assert b"quota" not in body


@pytest.mark.parametrize("host", ["localhost", "localhost:{port}", "[::1]:{port}", "LOCALHOST"])
def test_own_host_is_answered(server: HealthServer, host: str) -> None:
    assert _ask(server, "/healthz", host=host.format(port=server.address.port))[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "BREW"])
def test_only_get(server: HealthServer, method: str) -> None:
    assert _ask(server, "/healthz", method=method)[0] == 405


@pytest.mark.parametrize("path", ["/", "/healthz/", "/../etc/passwd", "/debug"])
def test_other_paths_are_not_found(server: HealthServer, path: str) -> None:
    assert _ask(server, path)[0] == 404


def test_bound_to_all_it_answers_addresses_but_no_names(health: Health) -> None:
    server = HealthServer(health, service="quota", instance="box-1", host="0.0.0.0")
    assert server.knows(["10.0.0.7"])
    assert not server.knows(["evil.example"])
    assert not server.knows(["10.0.0.7", "10.0.0.7"])
    server.close()


def test_port_file_is_private_and_removed_only_by_its_owner(health: Health, tmp_path: Path) -> None:
    path = tmp_path / "quota.json"
    old = HealthServer(health, service="quota", instance="old", close_within_s=0.01)
    old.start(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert BoundAddress.decode(path.read_bytes()) == old.address
    new = HealthServer(health, service="quota", instance="new", close_within_s=0.01)
    new.start(path)
    old.close()
    assert BoundAddress.decode(path.read_bytes()) == new.address
    new.close()
    assert list(tmp_path.iterdir()) == []
