"""A gateway that folds long logs is alive, is not ready, and says how far it is."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog
from opentelemetry.metrics import get_meter
from opentelemetry.trace import get_tracer

from gangline_bus.codec import encode
from gangline_bus.memory import Broker
from gangline_bus.ports import Record
from gangline_bus.topics import TopicNames, create_topics
from gangline_gateway import serving
from gangline_gateway.config import Settings
from gangline_gateway.tail import Tail
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.admin import TeamConfigureRequested
from gangline_schemas.team_limits import TeamConfig
from gangline_service.health import Health
from gangline_service.health_server import HealthServer
from gangline_service.lifecycle import Context
from gangline_service.tokens import Role, TokenEntry, write_tokens

RECORDS = 4
PATIENCE_S = 30.0


class SlowFold:
    """Each record costs 20 s of the clock; the main thread then turns once, and health is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.turned = threading.Event()
        self.stopping = threading.Event()
        self.health = Health(beat_timeout_s=30.0, clock=lambda: self.now_s)
        self.seen: list[tuple[int, int, str]] = []
        self._server = HealthServer(self.health, service="gateway", instance="box-1")
        self._tail: Tail | None = None
        self._decoded = Tail._decoded
        monkeypatch.setattr(self.health, "beat", self._beat)

        def decoded(tail: Tail, record: Record) -> Any:
            return self._cost(tail, record)

        monkeypatch.setattr(Tail, "_decoded", decoded)

    def _beat(self) -> None:
        Health.beat(self.health)
        self.turned.set()

    def _cost(self, tail: Tail, record: Record) -> Any:
        self._tail = tail
        if len(self.seen) < RECORDS:
            self._look()
        return self._decoded(tail, record)

    def _look(self) -> None:
        self.now_s += 20.0
        self.turned.clear()
        self.turned.wait(PATIENCE_S)
        alive, body, _ = self._server.answer("/healthz", "")
        ready = self._server.answer("/readyz", "")[0]
        self.seen.append((alive, ready, json.loads(body)["not_ready"]["tail"]))
        if len(self.seen) == RECORDS:
            self.stopping.set()

    def close(self) -> None:
        self._server.close()
        if self._tail is not None:
            self._tail.close()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowFold]:
    fold = SlowFold(monkeypatch)
    yield fold
    fold.close()


def test_it_is_alive_while_it_folds(
    slow: SlowFold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker()
    bus = broker.connect("earlier")
    create_topics(bus, TopicNames())
    for index in range(RECORDS):
        event = TeamConfigureRequested(config=TeamConfig(team=f"t{index}", gpu_limit=1))
        at = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
        envelope = Envelope(f"e{index}", "/test", at, f"t{index}", event)
        bus.writer().send(encode(envelope, topic=Topic.ADMIN))
    monkeypatch.setattr(serving, "connect", lambda *_: broker.connect("gateway"))
    tokens = tmp_path / "tokens.toml"
    write_tokens(tokens, [TokenEntry.of("secret", name="ada", role=Role.MEMBER, teams=())])
    context = Context(
        settings=Settings(tokens_file=tokens, gateway_port=0),
        health=slow.health,
        stopping=slow.stopping,
        log=structlog.get_logger(),
        meter=get_meter("test"),
        tracer=get_tracer("test"),
    )

    assert serving.main(context) == 0

    assert [(alive, ready) for alive, ready, _ in slow.seen] == [(200, 503)] * RECORDS
    assert "records are read" in slow.seen[-1][2]
