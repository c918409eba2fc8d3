"""Each process announces its release at its start, each hour, and that it stops."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import structlog
from opentelemetry.metrics import get_meter
from opentelemetry.trace import get_tracer

from gangline_bus.codec import receive
from gangline_bus.memory import Broker
from gangline_bus.ports import Bus, BusUnavailable
from gangline_bus.topics import TopicNames, create_topics
from gangline_quota.core.decide import Quota
from gangline_quota.core.snapshot import codec
from gangline_schemas.catalog import Topic
from gangline_schemas.events.parts import PartAnnounced
from gangline_schemas.features import RELEASE
from gangline_service import announcing, deciding
from gangline_service.announcing import AGAIN_S, RETRY_S, announce
from gangline_service.health import Health
from gangline_service.lifecycle import Context
from gangline_service.settings import DecidingSettings, ServiceSettings


class Hours(threading.Event):
    """Stops after so many waits, which take no time."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return len(self.waits) > self.count


def broker() -> tuple[Broker, Bus]:
    made = Broker()
    bus = made.connect("process")
    create_topics(bus, TopicNames())
    return made, bus


def announced(of: Broker) -> list[PartAnnounced]:
    found = [receive(record).envelope.data for record in of.dump(Topic.PARTS)]
    return [event for event in found if isinstance(event, PartAnnounced)]


def test_it_announces_now_and_each_hour_and_that_it_stops() -> None:
    made, bus = broker()
    hours = Hours(2)
    announce(bus, TopicNames(), "gateway", "gateway-1", hours).join()
    assert hours.waits == [AGAIN_S] * 3
    assert [event.release for event in announced(made)] == [RELEASE, RELEASE, RELEASE, None]
    assert {(event.part, event.instance) for event in announced(made)} == {("gateway", "gateway-1")}


def test_a_bus_that_is_away_is_tried_again_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, bus = broker()
    hours, real, calls = Hours(2), announcing.write_one, [0]

    def flaky(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] in {2, 4}:
            raise BusUnavailable("away")
        real(*arguments)

    monkeypatch.setattr(announcing, "write_one", flaky)
    announce(bus, TopicNames(), "tracker", "t", hours).join()
    assert hours.waits == [AGAIN_S, RETRY_S, AGAIN_S]
    assert [event.release for event in announced(made)] == [RELEASE, RELEASE]


def test_a_bus_that_is_slow_at_the_start_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made, bus = broker()
    real, calls = announcing.write_one, [0]

    def slow(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] < 3:
            raise BusUnavailable("the topic did not take a record within 30 s")
        real(*arguments)

    pauses = Hours(2)  # after these it stops, so that threads of the start end
    context = Context(
        settings=ServiceSettings(instance_id="mlflow-1"),
        health=Health(),
        stopping=pauses,
        log=structlog.get_logger(),
        meter=get_meter("test"),
        tracer=get_tracer("test"),
    )
    monkeypatch.setattr(announcing, "write_one", slow)
    monkeypatch.setattr(deciding, "publish_vitals", lambda *_: None)
    deciding.begin_on_bus("mlflow", bus, TopicNames(), context)
    assert announced(made)[0].release == RELEASE
    assert len([wait for wait in pauses.waits if wait != AGAIN_S]) == 2


def test_a_service_announces_before_it_joins_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    made, bus = broker()
    mains: list[Any] = []
    seen: list[list[PartAnnounced]] = []
    context = Context(
        settings=ServiceSettings(instance_id="standby-7"),
        health=Health(),
        stopping=threading.Event(),
        log=structlog.get_logger(),
        meter=get_meter("test"),
        tracer=get_tracer("test"),
    )

    def on_start(_: Bus, context: Context[ServiceSettings]) -> None:
        seen.append(announced(made))
        context.stopping.set()

    monkeypatch.setattr(deciding, "connect", lambda *_: bus)
    monkeypatch.setattr(deciding, "run", lambda _name, _settings, main: mains.append(main))
    deciding.run_decider("quota", DecidingSettings(), Quota(), codec(), on_start=on_start)
    assert mains[0](context) == 0
    ((event,),) = seen
    assert event == PartAnnounced(part="quota", instance="standby-7", release=RELEASE)
