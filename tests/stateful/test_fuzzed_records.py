"""Fuzzed records in every topic: no reader of them ends, and others are served.

`GANGLINE_FUZZ_RECORDS` is how many per topic (`make soak`: 10,000), `GANGLINE_SOAK_SEED` the seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from gangline_bus.codec import encode
from gangline_bus.decider import DeciderLoop
from gangline_bus.decision import Decider
from gangline_bus.memory import Broker
from gangline_bus.ports import BusError
from gangline_bus.topics import TopicNames, create_topics
from gangline_gateway.events import answer_of
from gangline_gateway.live import Live
from gangline_gateway.tail import Tail
from gangline_quota.core.decide import Quota
from gangline_schemas.catalog import Topic, catalog, topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.admin import TeamConfigureRequested
from gangline_schemas.events.requests import JobSubmitted
from gangline_tracker.event_batch import EventBatch
from gangline_tracker.ingest import GROUPS, STREAM_BATCHES, Group, Pipeline
from gangline_tracker.runs import Run
from support.attacks.record_fuzz import records
from support.builders.deciding import START, spec, team
from support.deciders import DECIDERS

RECORDS = int(os.environ.get("GANGLINE_FUZZ_RECORDS", "300"))
SEED = int(os.environ.get("GANGLINE_SOAK_SEED", "23"))
NAMES = TopicNames("fuzz.")


def broker_with(topics: Iterable[Topic]) -> Broker:
    """Fuzzed records in these topics."""
    broker = Broker(lambda: int(START.timestamp() * 1000))
    bus = broker.connect("fuzz")
    create_topics(bus, NAMES)
    writer = bus.writer()
    for topic in topics:
        random = Random(f"{SEED}/{topic.value}")
        for record in records(topic, NAMES.name(topic), RECORDS, random):
            writer.send(record)
    return broker


class Lives:
    """A decider's process, and those that follow it when it ends."""

    def __init__(self, broker: Broker, make: Callable[[], Decider[Any, Any]]) -> None:
        self.broker = broker
        self.now = START
        self.deaths: list[BaseException] = []
        self._make = make

    def live(self, most: int) -> DeciderLoop[Any]:
        """The process that has read all inputs. Fails after so many deaths."""
        while len(self.deaths) <= most:
            decider = self._make()
            client = f"{decider.name}-{len(self.deaths)}"
            loop = DeciderLoop(self.broker.connect(client), decider, self._clock, names=NAMES)
            try:
                loop.take_over()
                while not self._at_the_end(loop):
                    loop.cycle(0.0)
                loop.cycle(0.0)
            except BusError:
                raise
            except Exception as error:
                self.deaths.append(error)
            else:
                return loop
        raise AssertionError(f"{most} deaths") from self.deaths[-1]

    def _clock(self) -> Any:
        self.now += timedelta(seconds=1)
        return self.now

    def _at_the_end(self, loop: DeciderLoop[Any]) -> bool:
        positions = loop.positions()
        return positions == self.broker.connect("ends").end_offsets(positions)


def streams_of(decider: Decider[Any, Any]) -> list[Topic]:
    return [at for at in (*decider.inputs, *decider.signals) if catalog()[at].kind == "stream"]


@pytest.mark.parametrize("name", DECIDERS)
def test_no_record_of_a_stream_ends_a_decider(name: str) -> None:
    make = DECIDERS[name].make
    streams = streams_of(make())
    loop = Lives(broker_with(streams), make).live(most=0)
    read = {place.topic for place, offset in loop.positions().items() if offset}
    assert {NAMES.name(topic) for topic in streams} <= read


@pytest.mark.parametrize("name", DECIDERS)
def test_a_decider_outlives_what_another_s_log_says(name: str) -> None:
    """There each deadly record costs two processes, and no more."""
    make = DECIDERS[name].make
    decider = make()
    logs = [at for at in decider.inputs if catalog()[at].kind == "log" and at is not decider.log]
    broker = broker_with(logs)
    lives = Lives(broker, make)
    lives.live(most=RECORDS * len(logs))
    poison = [
        record
        for topic in logs
        for record in broker.dump(NAMES.dlq(NAMES.name(topic)))
        if "gangline_dlq_trace" in dict(record.headers)
    ]
    assert len(lives.deaths) <= 4 * len(poison) + 4


def test_others_are_served_among_garbage() -> None:
    broker = broker_with([Topic.ADMIN, Topic.REQUESTS])
    writer = broker.connect("users").writer()
    wanted = (
        ("red", TeamConfigureRequested(config=team("red"), user="ada")),
        ("good", JobSubmitted(job_id="good", spec=spec("red"), user="ada")),
    )
    lives = Lives(broker, Quota)
    for subject, event in wanted:
        envelope = Envelope(f"good-{subject}", "/users", START, subject, event)
        writer.send(encode(envelope, topic=NAMES.name(topic_of(event.type))))
        loop = lives.live(most=0)
    assert "good" in loop.state.active


def test_the_gateway_reads_on() -> None:
    broker = broker_with(Topic)
    tail = Tail(broker.connect("gateway"), NAMES)
    tail.start()
    try:
        assert tail.ready.wait(120.0), "the tail ended"
        assert tail.progress()[0] == tail.progress()[1]
    finally:
        tail.close()


def test_the_gateway_passes_over_what_it_cannot_show(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = broker_with([Topic.REQUESTS])

    def fail(live: Live, envelope: Envelope) -> None:
        raise OverflowError(envelope.id)

    monkeypatch.setattr(Live, "apply", fail)
    tail = Tail(broker.connect("gateway"), NAMES)
    tail.start()
    try:
        assert tail.ready.wait(60.0), "the tail ended"
    finally:
        tail.close()


def test_what_is_shown_of_a_topic_is_read_on() -> None:
    broker = broker_with(Topic)
    shown = sum(
        answer_of(record, NAMES) is not None
        for topic in Topic
        for record in broker.dump(NAMES.name(topic))
    )
    assert 0 < shown < RECORDS * len(Topic)


class NoRuns:
    """No user has seen any run."""

    def find(self, jobs: Sequence[str]) -> Mapping[str, Run]:
        return {}

    def models(self) -> dict[str, str]:
        return {}

    def keep(self, runs: Iterable[Run]) -> None:
        """Nothing."""


class Rows:
    """Takes rows as ClickHouse would, and counts those of the table with the offsets."""

    def __init__(self) -> None:
        self.count: dict[str, int] = {}

    def positions(self, group: Group) -> dict[tuple[str, int], int]:
        return {}

    def insert(self, table: str, rows: pa.Table) -> None:
        rows.validate(full=True)
        self.count[table] = self.count.get(table, 0) + rows.num_rows

    def remove(self, table: str, run_ids: Sequence[str]) -> None:
        assert table
        assert all(run_ids)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.table)
def test_the_tracker_reads_on(group: Group) -> None:
    broker, rows = broker_with(group.topics), Rows()
    batch = STREAM_BATCHES.get(group.table, lambda: EventBatch(NoRuns(), NAMES.prefix))
    now = iter_times()
    pipeline = Pipeline(
        group, broker.connect("tracker"), rows, batch, lambda: next(now), names=NAMES
    )
    pipeline.seek()
    while pipeline.cycle(0.0):
        pass
    pipeline.flush()
    pipeline.close()
    assert rows.count[group.table] > 0
    assert pipeline.counts.records + pipeline.counts.refused == RECORDS * len(group.topics)


def iter_times() -> Iterator[Any]:
    now = START
    while True:
        now += timedelta(milliseconds=1)
        yield now
