"""What leaves the agent while its disk takes nothing: control events do, and it is said once."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricReader

from gangline_bus.codec import receive
from gangline_bus.memory import Broker
from gangline_bus.topics import TopicNames, create_topics
from gangline_schemas.catalog import Topic
from gangline_schemas.events.heartbeats import NodeHealth, NodeUse, WorkerHeartbeat
from gangline_schemas.events.logs import LogLine
from gangline_schemas.events.metrics import MetricLogged
from gangline_schemas.events.workers import NodeLeaving
from gangline_schemas.mlflow_workspace import mlflow_run_id
from gangline_worker.agent.decide.effects import Publish
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.spool import outgoing as outgoing_module
from gangline_worker.agent.spool.outgoing import Outgoing

NAMES = TopicNames("t.")
NOW = datetime(2026, 11, 1, tzinfo=UTC)


def leaving(number: int) -> Publish:
    event = NodeLeaving(node_id="node-0", incarnation="boot", reason=f"{number}")
    return Publish("node-0", event, ("boot", number))


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Makes the disk full, or no more."""
    write = os.write

    def refuse(_file: int, _content: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    return lambda yes: monkeypatch.setattr(os, "write", refuse if yes else write)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that `outgoing` reads, to be set."""
    times = [100.0]
    monkeypatch.setattr(outgoing_module, "time", SimpleNamespace(monotonic=lambda: times[0]))
    return times


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    create_topics(made.connect("setup"), NAMES)
    return made


def outgoing_to(
    broker: Broker,
    folder: Path,
    *readers: MetricReader,
    health: Callable[[], NodeHealth | None] = lambda: None,
    use: Callable[[], NodeUse | None] = lambda: None,
) -> Outgoing:
    return Outgoing(
        folder,
        "node-0",
        NAMES,
        broker.connect,
        limit_bytes=1_000_000,
        gpus=tuple,
        health=health,
        use=use,
        meter=MeterProvider(readers).get_meter("test"),
    )


def beat(outgoing: Outgoing) -> None:
    heartbeat = WorkerHeartbeat(node_id="node-0", incarnation="boot", sequence=1, sent_at=NOW)
    outgoing.heartbeat(heartbeat, 100.0, lambda _: None)


def test_control_events_pass_a_full_disk_and_it_is_said_once(
    broker: Broker, tmp_path: Path, full: Callable[[bool], None], clock: list[float]
):
    reader = InMemoryMetricReader()
    outgoing = outgoing_to(broker, tmp_path, reader)

    def metrics() -> dict[str, float]:
        found = reader.get_metrics_data()
        assert found is not None
        return {
            metric.name: metric.data.data_points[0].value
            for resource in found.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    rank = RankKey(GangKey("job", 1), 0)
    line = (LogLine(time_ms=1, stream="stdout", text="lost"),)
    with structlog.testing.capture_logs() as said:
        for number in range(3):
            full(True)
            outgoing.publish(leaving(number), NOW)
            outgoing.publish_log(rank, "nlp", number, line)
            held = metrics()
            full(False)  # a little was deleted
            beat(outgoing)
        assert [item["event"] for item in said] == ["spool.held_in_memory", "spool.not_written"]
        clock[0] += 31.0
        beat(outgoing)

    assert held["gangline.agent.spool.memory"] > 0
    assert held["gangline.agent.spool.lost"] == 3
    assert metrics()["gangline.agent.spool.memory"] == 0
    assert [item["event"] for item in said[2:]] == ["spool.on_disk_again", "spool.written_again"]
    assert said[-1]["lost"] == 3

    outgoing.start()
    outgoing.close(10.0)
    arrived = [
        receive(record).envelope.data.reason for record in broker.dump(NAMES.name(Topic.WORKERS))
    ]
    assert arrived == ["0", "1", "2"]


def test_they_are_sent_though_the_disk_stays_full(
    broker: Broker, tmp_path: Path, full: Callable[[bool], None]
):
    full(True)
    outgoing = outgoing_to(broker, tmp_path)
    outgoing.start()
    outgoing.publish(leaving(0), NOW)
    outgoing.close(10.0)
    assert len(broker.dump(NAMES.name(Topic.WORKERS))) == 1
    assert outgoing.unsaved() == b""


def test_readings_are_sent_until_a_heartbeat_with_them_was_delivered_and_not_again(
    broker: Broker, tmp_path: Path
) -> None:
    newest: list[datetime | None] = [None]
    outgoing = outgoing_to(
        broker,
        tmp_path,
        health=lambda: None if newest[0] is None else NodeHealth(read_at=newest[0]),
        use=lambda: None if newest[0] is None else NodeUse(read_at=newest[0]),
    )
    outgoing.start()
    first, second = NOW, NOW + timedelta(seconds=10)
    beat(outgoing)
    newest[0] = first
    broker.down = True
    beat(outgoing)  # no consumer has it
    broker.down = False
    for _ in range(3):
        beat(outgoing)
    newest[0] = second
    for _ in range(2):
        beat(outgoing)
    outgoing.close(1.0)

    reader = broker.connect("reader").reader("reader")
    reader.assign(dict.fromkeys(NAMES.places(broker.connect("places"), Topic.HEARTBEATS), 0))
    sent = [receive(record).envelope.data for record in reader.poll(100, 0.0)]
    beats = [event for event in sent if isinstance(event, WorkerHeartbeat)]
    for readings in ([beat.health for beat in beats], [beat.use for beat in beats]):
        times = [reading and reading.read_at for reading in readings]
        assert times == [None, first, None, None, second, None]


def test_points_of_a_job_are_those_of_its_mlflow_run(broker: Broker, tmp_path: Path):
    outgoing = outgoing_to(broker, tmp_path)
    outgoing.start()
    outgoing.publish_points("sft-1", "nlp", 1_750_000_000_500, [("system/n/a", 1.5)])
    outgoing.close(10.0)
    (record,) = broker.dump(NAMES.name(Topic.METRICS))
    envelope = receive(record).envelope
    assert record.key == mlflow_run_id("sft-1").encode()
    assert envelope.data == MetricLogged(
        run_id=mlflow_run_id("sft-1"),
        team="nlp",
        name=("system/n/a",),
        step=(1_750_000_000,),
        time_ms=(1_750_000_000_500,),
        value=(1.5,),
    )
