"""A deciding process is ready only once its start is done and its role is known."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import structlog
from opentelemetry.metrics import get_meter
from opentelemetry.trace import get_tracer

from gangline_bus.memory import Broker
from gangline_bus.ports import Bus
from gangline_bus.topics import TopicNames, create_topics
from gangline_quota.core.decide import Quota
from gangline_quota.core.snapshot import codec
from gangline_service import deciding
from gangline_service.health import Health
from gangline_service.lifecycle import Context
from gangline_service.settings import DecidingSettings, ServiceSettings


def test_it_is_not_ready_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = Broker().connect("quota")
    create_topics(bus, TopicNames())
    mains: list[Any] = []
    monkeypatch.setattr(deciding, "connect", lambda *_: bus)
    monkeypatch.setattr(deciding, "run", lambda _name, _settings, main: mains.append(main))
    ready: list[bool] = []

    def on_start(_: Bus, context: Context[ServiceSettings]) -> None:
        ready.append(context.health.ready())
        context.stopping.set()

    deciding.run_decider("quota", DecidingSettings(), Quota(), codec(), on_start=on_start)
    context = Context(
        settings=ServiceSettings(),
        health=Health(),
        stopping=threading.Event(),
        log=structlog.get_logger(),
        meter=get_meter("test"),
        tracer=get_tracer("test"),
    )
    assert mains[0](context) == 0
    assert ready == [False]
