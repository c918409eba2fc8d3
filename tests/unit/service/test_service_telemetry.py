"""Telemetry: own registry, W3C context as one string, export only when asked for."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest
from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation
from prometheus_client import REGISTRY

from gangline_service import telemetry


def test_metrics_are_in_the_own_registry_alone() -> None:
    one, two = telemetry.start("quota", "a"), telemetry.start("quota", "b")
    one.meter("gangline.quota").create_counter("gangline.inputs").add(3, {"topic": "jobs"})
    text = one.exposition()[0].decode()
    assert 'gangline_inputs_total{topic="jobs"} 3.0' in text
    assert 'service_instance_id="a"' in text
    assert "gangline_inputs" not in two.exposition()[0].decode()
    assert "gangline_inputs_total" not in {m.name for m in REGISTRY.collect()}
    assert not isinstance(metrics.get_meter_provider(), type(one.meters))


def test_a_gauge_names_new_jobs_however_many_there_were_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(telemetry, "_MOST_SERIES", 3)
    live: list[str] = []

    def values(_: CallbackOptions) -> Iterator[Observation]:
        return (Observation(1.0, {"job": job}) for job in live)

    one = telemetry.start("alerts", "a")
    one.meter("test").create_observable_gauge("gangline.run.mfu", [values])
    for first in range(0, 12, 3):
        live[:] = [f"j{number}" for number in range(first, first + 3)]
        lines = one.exposition()[0].decode().splitlines()
        found = [line for line in lines if line.startswith("gangline_run_mfu")]
        assert found == [f'gangline_run_mfu{{job="{job}"}} 1.0' for job in live]


def test_spans_and_metrics_go_to_the_collector() -> None:
    received: list[str] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            received.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base's)
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        providers = telemetry.start("quota", "a", f"http://127.0.0.1:{server.server_port}")
        providers.meter("test").create_counter("gangline.inputs").add(1)
        with providers.tracer("test").start_as_current_span("decide"):
            pass
        assert providers.shutdown(20)
        server.shutdown()
    assert set(received) == {"/v1/traces", "/v1/metrics"}


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text;version=x.y", "text/plain; version=a"]
)
def test_an_accept_header_that_cannot_be_read_gets_the_plain_format(accept: str) -> None:
    one = telemetry.start("quota", "box-1")
    text, content_type = one.exposition(accept)
    assert b"# TYPE" in text
    assert content_type == one.exposition()[1]
