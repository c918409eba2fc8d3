"""Records of a later version: skipped and counted in others' logs, never in the own one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from gangline_bus import unknown
from gangline_bus.codec import UndecodableError, decode, encode
from gangline_bus.decider import DeciderLoop
from gangline_bus.fold import LogBroken
from gangline_bus.memory import Broker
from gangline_bus.ports import Headers, OutRecord, TopicPartition
from gangline_bus.topics import TopicNames, create_topics
from gangline_quota.core.decide import Quota
from gangline_scheduler.core.decide import Scheduler
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.admin import TeamConfigureRequested
from support.builders.deciding import team
from support.deciders import DECIDERS

NAMES = TopicNames()
EXAMPLES = Path(__file__).parents[3] / "schemas" / "examples"
NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
RELEASED = {"job_id": "a", "attempt": 1, "allocated_at": "2026-11-21T08:00:00Z", "gpu_seconds": 1}


class World:
    """A broker, and what a later version's services and clients write to it."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.bus = self.broker.connect("later")
        create_topics(self.bus, NAMES)
        self._seq: dict[Topic, int] = {}

    def write(self, topic: Topic, event_type: str, data: dict[str, Any]) -> None:
        """One record as a service of a later version writes it to its log, or a client."""
        headers: Headers = tuple(
            (name, value.encode())
            for name, value in {
                "ce_specversion": "1.0",
                "ce_id": f"{topic}{event_type}",
                "ce_source": "/gangline/later/x",
                "ce_type": event_type,
                "ce_subject": "a",
                "ce_time": "2026-11-21T08:00:00Z",
                "ce_ganglineshard": "0",
                "ce_ganglineepoch": "1",
                "ce_ganglineseq": str(self._seq.setdefault(topic, 0)),
            }.items()
        )
        self._seq[topic] += 1
        record = OutRecord(topic.value, b"0", json.dumps(data).encode(), headers, 0)
        self.bus.writer().send(record)

    def lead(self, decider: Any) -> DeciderLoop[Any]:
        """A leader of this version that has read what there is."""
        loop = DeciderLoop(self.broker.connect(decider.name), decider, lambda: NOW)
        loop.take_over()
        for _ in range(5):
            loop.cycle(0.0)
        return loop

    def dead_letters(self) -> int:
        return sum(len(self.broker.dump(topic.dlq)) for topic in Topic)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """How many unknown things of each kind were counted, by topic and kind."""
    reader = InMemoryMetricReader()
    meters = MeterProvider(metric_readers=[reader])
    monkeypatch.setattr(unknown, "_UNKNOWN", meters.get_meter("t").create_counter("unknown"))

    def counts() -> dict[tuple[str, str], int]:
        data = reader.get_metrics_data()
        points = [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        ]
        return {(p.attributes["topic"], p.attributes["what"]): p.value for p in points}

    yield counts
    meters.shutdown()


@pytest.mark.parametrize("name", DECIDERS)
def test_another_services_log_of_a_later_version_ends_nobody(
    name: str, world: World, counted: Any
) -> None:
    """A type, a value of an enum and a field that this version does not know."""
    decider = DECIDERS[name].make
    logs = [t for t in decider().inputs if t in {Topic.QUOTA, Topic.SCHEDULING, Topic.FAULTS}]
    for topic in logs:
        world.write(topic, "thing.happened", {"job_id": "a"})
    known = Topic.SCHEDULING in logs
    if known:
        world.write(Topic.SCHEDULING, "gang.released", {**RELEASED, "reason": "suspended"})
        world.write(
            Topic.SCHEDULING, "gang.released", {**RELEASED, "reason": "succeeded", "why": "x"}
        )

    world.lead(decider())

    expected = {(topic.value, "type"): 1 for topic in logs}
    if known:
        expected |= {("gangline.scheduling", "value"): 1, ("gangline.scheduling", "field"): 1}
    assert counted() == expected
    assert world.dead_letters() == 0, "the log keeps them"


def test_an_error_behind_an_unknown_field_ends_no_reader(world: World, counted: Any) -> None:
    """A list ends at its first error, so the second one shows when the field is left out."""
    example = json.loads((EXAMPLES / "gang.allocated.json").read_text(encoding="utf-8"))
    (node, *_) = example["nodes"]
    later = {**node, "later": 1}
    world.write(Topic.SCHEDULING, "gang.allocated", {**example, "nodes": [later]})
    bad = {**example, "nodes": [later, {**node, "first_rank": -1}]}
    world.write(Topic.SCHEDULING, "gang.allocated", bad)
    reader = world.bus.reader("any")
    reader.assign({TopicPartition(Topic.SCHEDULING.value, 0): 0})
    readable, unreadable = reader.poll(10, 0.0)
    assert decode(readable).data.type == "gang.allocated"
    assert counted() == {("gangline.scheduling", "field"): 1}
    with pytest.raises(UndecodableError, match=r"nodes\.1\.first_rank"):
        decode(unreadable)


def test_what_comes_after_is_decided(world: World) -> None:
    world.write(Topic.SCHEDULING, "thing.happened", {"job_id": "a"})
    world.write(Topic.WORKERS, "thing.happened", {"job_id": "a"})
    request = TeamConfigureRequested(config=team("nlp"))
    envelope = Envelope("r", "/t", NOW, "nlp", request)
    world.bus.writer().send(encode(envelope, topic=Topic.ADMIN))
    assert "nlp" in world.lead(Quota()).state.teams


def test_a_stream_keeps_what_is_unknown_as_a_dead_letter(world: World, counted: Any) -> None:
    world.write(Topic.REQUESTS, "job.paused", {"job_id": "a"})
    world.lead(Quota())
    assert counted() == {("gangline.requests", "type"): 1}
    assert world.dead_letters() == 1


@pytest.mark.parametrize(
    ("event_type", "data", "named"),
    [
        ("gang.paused", {"job_id": "a"}, "ce_type is not a published type"),
        ("gang.released", {**RELEASED, "reason": "suspended"}, "reason"),
        ("gang.released", {**RELEASED, "reason": "succeeded", "why": "x"}, "why"),
    ],
    ids=["type", "value", "field"],
)
def test_the_own_log_of_a_later_version_stops_the_service(
    world: World, event_type: str, data: dict[str, Any], named: str
) -> None:
    world.write(Topic.SCHEDULING, event_type, data)
    with pytest.raises(LogBroken, match=rf"{named}.* A later version wrote it.*upgrades\.md"):
        world.lead(Scheduler())
    assert world.broker.dump(Topic.SCHEDULING)[0].value == json.dumps(data).encode()
