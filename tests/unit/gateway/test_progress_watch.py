"""A live view that publishes nothing, though steps come, is silent; anything else is well."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gangline_bus.codec import encode
from gangline_bus.memory import Broker
from gangline_bus.ports import OutRecord
from gangline_bus.topics import TopicNames, create_topics
from gangline_gateway.progress_watch import QUIET_S, SILENT_S, ProgressWatch
from gangline_gateway.tail import Tail
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.progress import RunProgress
from gangline_schemas.events.steps import WorkerStep
from support.waiting import wait_until

DEADLINE_S = 20.0


def step(number: int, *, attempt: int = 1, rank: int = 0, team: str = "nlp") -> WorkerStep:
    return WorkerStep(
        run_id="a", team=team, attempt=attempt, rank=rank, step=(number,), time_ms=(1,), metrics={}
    )


def said(number: int, attempt: int = 1, run_id: str = "a") -> RunProgress:
    return RunProgress(
        run_id=run_id, team="nlp", attempt=attempt, rank=0, step=number, time_ms=1, metrics={}
    )


def test_steps_without_progress_are_a_silence_after_a_while() -> None:
    watch = ProgressWatch()
    assert watch.silent_s(1000.0) == 0.0, "nothing runs"
    watch.stepped(step(1), 1000.0)
    watch.stepped(step(2), 1010.0)
    assert watch.silent_s(1000.0 + SILENT_S - 1) == 0.0
    assert watch.silent_s(1000.0 + SILENT_S) == SILENT_S
    watch.answered(said(2), 1020.0)
    assert watch.silent_s(2000.0) == 0.0
    watch.stepped(step(3), 2000.0)
    assert watch.silent_s(2001.0) == 0.0
    assert watch.silent_s(2000.0 + SILENT_S) == SILENT_S


@pytest.mark.parametrize(
    ("report", "counts"),
    [
        (step(50, attempt=2), False),
        (step(49, attempt=2), False),
        (step(99), False),
        (step(51, attempt=2, rank=1), False),
        (step(51, attempt=2), True),
        (step(1, attempt=3, rank=1), True),
        (step(1, team="vision"), True),
    ],
)
def test_only_steps_count_that_the_view_must_publish(report: WorkerStep, counts: bool) -> None:
    watch = ProgressWatch()
    watch.answered(said(50, attempt=2), 1000.0)
    watch.stepped(report, 1000.0)
    assert (watch.silent_s(1000.0 + SILENT_S) > 0) is counts


def test_steps_are_looked_at_only_while_they_matter() -> None:
    watch = ProgressWatch()
    assert watch.wants_step(1000.0)
    watch.stepped(step(1), 1000.0)
    assert not watch.wants_step(1001.0), "one of them counts already"
    watch.answered(said(1), 1001.0)
    assert not watch.wants_step(1001.0 + QUIET_S - 1), "progress comes"
    assert watch.wants_step(1001.0 + QUIET_S)
    watch.stepped(step(1), 1001.0 + QUIET_S)
    assert watch.wants_step(1001.0 + QUIET_S), "it did not count"


def test_of_so_many_runs_the_progress_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangline_gateway.progress_watch.RUNS_MAX", 2)
    watch = ProgressWatch()
    for run_id in ("a", "b", "c"):
        watch.answered(said(5, run_id=run_id), 1000.0)
    watch.stepped(step(5).model_copy(update={"run_id": "b"}), 1000.0)
    assert watch.silent_s(2000.0) == 0.0
    watch.stepped(step(5), 1000.0)
    assert watch.silent_s(2000.0) > 0.0, "the longest silent one is no longer known"


def test_the_gateway_notices_a_live_view_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangline_gateway.progress_watch.SILENT_S", 0.0)
    monkeypatch.setattr("gangline_gateway.progress_watch.QUIET_S", 0.0)
    broker, names = Broker(lambda: 1_800_000_000_000), TopicNames("t.")
    bus = broker.connect("test")
    create_topics(bus, names)

    topic = names.name(Topic.STEPS)

    def say(event: Event) -> None:
        envelope = Envelope(event.type, "/t", datetime.now(UTC), "a", event)
        bus.writer().send(encode(envelope, topic=names.name(topic_of(event.type)), key="a"))

    say(step(1))
    tail = Tail(broker.connect("gateway"), names)
    tail.start()
    try:
        assert tail.ready.wait(DEADLINE_S)
        assert tail.progress_silent_s() == 0.0, "what was reported before it began does not count"
        say(step(2))
        wait_until("it is silent", lambda: tail.progress_silent_s() > 0.0)
        say(said(2))
        wait_until("it is not silent", lambda: tail.progress_silent_s() == 0.0)
        bus.writer().send(OutRecord(topic, b"a", b"no event"))
        say(step(2))
        places = tail.places(Topic.STEPS)
        wait_until("all is read", lambda: sum(tail.ends(places).values()) == 4)
        assert tail.progress_silent_s() == 0.0, "the view publishes nothing for these"
        say(step(3))
        wait_until("it is silent", lambda: tail.progress_silent_s() > 0.0)
    finally:
        tail.close()
