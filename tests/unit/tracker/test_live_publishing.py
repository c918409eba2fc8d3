"""What the live view published: each team's run has its own key, and comes back at a restart."""

from __future__ import annotations

import threading

from gangline_bus.memory import Broker
from gangline_bus.topics import TopicNames, create_topics
from gangline_schemas.catalog import Topic
from gangline_schemas.events.progress import RunProgress
from gangline_tracker.views.publishing import Publisher, published

T0 = 1_795_248_000_000


def test_two_teams_that_report_one_run_both_come_back() -> None:
    broker, names = Broker(lambda: T0), TopicNames("t.")
    bus = broker.connect("test")
    create_topics(bus, names)

    def said(team: str, attempt: int, step: int) -> RunProgress:
        return RunProgress(
            run_id="run-1", team=team, attempt=attempt, rank=0, step=step, time_ms=T0, metrics={}
        )

    publisher = Publisher(bus, names)
    events = [said("nlp", 3, 499), said("nlp", 3, 500), said("vision", 1, 7)]
    for second, event in enumerate(events):
        publisher.publish([event], T0 + second * 1000)
    assert publisher.flush(1.0)
    found = published(bus, names, threading.Event(), lambda: None)
    assert found == [(events[1], T0 + 1000), (events[2], T0 + 2000)]
    reader = bus.reader("keys")
    reader.assign(bus.start_offsets(names.places(bus, Topic.PROGRESS)))
    keys = {record.key for record in reader.poll(10, 1.0)}
    assert keys == {b"nlp/run-1", b"vision/run-1"}
