"""A process that folds a long log is alive, is not ready, and keeps its place in the group."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog
from opentelemetry.metrics import get_meter
from opentelemetry.trace import get_tracer

from gangline_bus.codec import encode
from gangline_bus.decider import DeciderLoop
from gangline_bus.decision import Decision
from gangline_bus.memory import Broker
from gangline_bus.ports import BusError
from gangline_bus.topics import TopicNames, create_topics
from gangline_quota.core.decide import Quota
from gangline_quota.core.snapshot import codec
from gangline_quota.core.state import State
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.admin import TeamConfigureRequested
from gangline_schemas.team_limits import TeamConfig
from gangline_service import deciding
from gangline_service.health import Health
from gangline_service.health_server import HealthServer
from gangline_service.lifecycle import Context
from gangline_service.settings import DecidingSettings, ServiceSettings

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
TEAMS = 40
BEAT_TIMEOUT_S = 30.0


class SlowQuota(Quota):
    """Each event of the log costs 20 s to fold."""

    def __init__(self, spent: Callable[[], None]) -> None:
        super().__init__()
        self._spent = spent

    def evolve(self, state: State, decision: Decision, at: datetime) -> State:
        self._spent()
        return super().evolve(state, decision, at)


class Process:
    """A quota service over a bus whose log has an event for each of 40 teams."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = Broker()
        self.now_s = 0.0
        self.health = Health(beat_timeout_s=BEAT_TIMEOUT_S, clock=lambda: self.now_s)
        self.stopping = threading.Event()
        self.after_event: Callable[[], None] = lambda: None
        bus = self.broker.connect("earlier")
        create_topics(bus, TopicNames())
        for index in range(TEAMS):
            event = TeamConfigureRequested(config=TeamConfig(team=f"t{index}", gpu_limit=1))
            envelope = Envelope(f"e{index}", "/test", NOW, f"t{index}", event)
            bus.writer().send(encode(envelope, topic=Topic.ADMIN))
        earlier = DeciderLoop(bus, Quota(), lambda: NOW)
        earlier.take_over()
        while earlier.next_seq < TEAMS:
            earlier.cycle(0.0)
        mains: list[Any] = []
        monkeypatch.setattr(deciding, "connect", lambda *_: self.broker.connect("process"))
        monkeypatch.setattr(deciding, "run", lambda _name, _settings, main: mains.append(main))
        deciding.run_decider("quota", DecidingSettings(), SlowQuota(self._spent), codec())
        self._main = mains[0]

    def _spent(self) -> None:
        self.now_s += 20.0
        self.after_event()

    def run(self) -> int:
        context = Context(
            settings=ServiceSettings(),
            health=self.health,
            stopping=self.stopping,
            log=structlog.get_logger(),
            meter=get_meter("test"),
            tracer=get_tracer("test"),
        )
        return int(self._main(context))


def test_it_is_alive_and_not_ready_and_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)
    server = HealthServer(process.health, service="quota", instance="box-1")
    alive: list[bool] = []
    ready: list[bool] = []
    said: list[str] = []

    def look() -> None:
        status, body, _ = server.answer("/healthz", "")
        alive.append(status == 200)
        ready.append(server.answer("/readyz", "")[0] == 200)
        said.append(json.loads(body)["not_ready"]["role"])
        if len(alive) == TEAMS:
            process.stopping.set()

    process.after_event = look
    assert process.run() == 0
    server.close()
    assert alive == [True] * TEAMS
    assert ready == [False] * TEAMS
    end = process.broker.connect("check").end_offsets(
        TopicNames().places(process.broker.connect("check"), Topic.QUOTA)
    )
    (records,) = end.values()
    assert said[20] == f"taking over shard 0: 20 of {records} records of its log are folded"


def test_a_shard_that_is_given_away_ends_the_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)
    folded: list[None] = []

    def lose() -> None:
        folded.append(None)
        if len(folded) == 5:
            process.broker.lose("process")

    process.after_event = lose
    with pytest.raises(BusError, match="shard 0 was given to another instance while its log was"):
        process.run()
    assert len(folded) == 5


def test_a_stop_ends_the_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)
    folded: list[None] = []

    def stop() -> None:
        folded.append(None)
        process.stopping.set()

    process.after_event = stop
    assert process.run() == 0
    assert len(folded) == 1
