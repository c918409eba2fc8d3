"""A live view that publishes nothing, though steps come, is silent; anything else is well."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from gangline_bus.codec import encode
from gangline_bus.memory import Broker
from gangline_bus.topics import TopicNames, create_topics
from gangline_gateway.progress_watch import SILENT_S, ProgressWatch
from gangline_gateway.tail import Tail
from gangline_schemas.base import Event
from gangline_schemas.catalog import topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.progress import RunProgress
from gangline_schemas.events.steps import WorkerStep

DEADLINE_S = 20.0


def test_steps_without_progress_are_a_silence_after_a_while() -> None:
    watch = ProgressWatch()
    assert watch.silent_s(1000.0) == 0.0, "nothing runs"
    watch.stepped(1000.0)
    watch.stepped(1010.0)
    assert watch.silent_s(1000.0 + SILENT_S - 1) == 0.0
    assert watch.silent_s(1000.0 + SILENT_S) == SILENT_S
    watch.answered()
    assert watch.silent_s(2000.0) == 0.0
    watch.stepped(2000.0)
    assert watch.silent_s(2001.0) == 0.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_gateway_notices_a_live_view_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangline_gateway.progress_watch.SILENT_S", 0.0)
    broker, names = Broker(lambda: 1_800_000_000_000), TopicNames("t.")
    bus = broker.connect("test")
    create_topics(bus, names)

    def say(event: Event) -> None:
        envelope = Envelope(event.type, "/t", datetime.now(UTC), "a", event)
        bus.writer().send(encode(envelope, topic=names.name(topic_of(event.type))))

    who = {"run_id": "a", "team": "nlp", "attempt": 1, "rank": 0}
    old = WorkerStep(**who, step=(1,), time_ms=(1,), metrics={})
    say(old)
    tail = Tail(broker.connect("gateway"), names)
    tail.start()
    try:
        assert tail.ready.wait(DEADLINE_S)
        assert tail.progress_silent_s() == 0.0, "what was reported before it began does not count"
        say(old.model_copy(update={"step": (2,)}))
        until(lambda: tail.progress_silent_s() > 0.0)
        say(RunProgress(**who, step=2, time_ms=2, metrics={}))
        until(lambda: tail.progress_silent_s() == 0.0)
    finally:
        tail.close()
