"""Ingest dies before or after every single INSERT in turn; the tables end up the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client

from gangline_bus.codec import encode
from gangline_bus.memory import Broker
from gangline_bus.ports import OutRecord
from gangline_bus.topics import TopicNames, create_topics
from gangline_schemas.base import Event
from gangline_schemas.catalog import topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.checkpoints import CheckpointCommitted
from gangline_schemas.events.metrics import MetricLogged, MetricsRemoved
from gangline_schemas.events.quota import UsageCharged
from gangline_schemas.events.scheduling import CheckpointRef, JobQueued
from gangline_schemas.job import JobSpec
from gangline_schemas.resources import Resources
from gangline_tracker.batches import NewBatch, StepBatch
from gangline_tracker.engine import Engine
from gangline_tracker.event_batch import EventBatch
from gangline_tracker.ingest import EVENTS, METRICS, STEPS, Group, Pipeline, PositionError
from gangline_tracker.metric_batch import MetricBatch
from gangline_tracker.migrate import migrate
from gangline_tracker.run_cache import RunCache
from gangline_tracker.sink import ClickHouseSink
from support.builders.gangs import gang_released, reported
from support.waiting import wait_until

NOW = datetime(2026, 5, 4, tzinfo=UTC)
JOBS = 5


class Crash(Exception):
    """The process is gone."""


class CrashingSink(ClickHouseSink):
    """Dies at its `at`-th point; there is one before and one after each statement."""

    def __init__(self, client: Client, at: int) -> None:
        super().__init__(client)
        self.left = at

    def insert(self, table: str, rows: pa.Table) -> None:
        self._point()
        super().insert(table, rows)
        self._point()

    def remove(self, table: str, run_ids: Sequence[str]) -> None:
        self._point()
        super().remove(table, run_ids)
        self._point()

    def _point(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    engine = Engine(f"chdb://{tmp_path_factory.mktemp('crashes') / 'db'}")
    found = engine.client()
    migrate(found)
    return found


@pytest.fixture(autouse=True)
def _empty(client: Client) -> None:
    for table in ("steps", "events", "runs", "checkpoints", "usage", "metric_points"):
        client.command(f"TRUNCATE TABLE gangline.{table}")


def filled() -> Broker:
    broker = Broker()
    bus = broker.connect("producer")
    create_topics(bus, TopicNames())
    writer = bus.writer()
    spec = JobSpec(name="x", team="nlp", run="true", resources=Resources(gpus=1))

    def send(event: Event, job: str, count: int) -> None:
        envelope = Envelope(f"{job}-{count}-{event.type}", "t", NOW, job, event)
        writer.send(encode(envelope, topic=topic_of(event.type).value))

    for index in range(JOBS):
        job = f"job-{index}"
        send(JobQueued(job_id=job, spec=spec, user="ann", submitted_at=NOW), job, 0)
        for attempt in (1, 2):
            released = gang_released(job, attempt, NOW, gpu_seconds=10.0)
            send(released, job, attempt)
            ref = CheckpointRef(job_id=job, attempt=attempt, step=5, world_size=1, commit_key="k")
            send(CheckpointCommitted(job_id=job, checkpoint=ref, size_bytes=1, objects=2), job, 0)
            used = UsageCharged(
                job_id=job,
                attempt=attempt,
                team="nlp",
                gpus=1,
                allocated_at=NOW,
                released_at=NOW,
                gpu_seconds=10.0,
                cpus=1.5 if attempt == 2 else None,
                cpu_seconds=6.0 if attempt == 2 else None,
            )
            send(used, job, attempt)
        for first in range(0, 30, 10):
            steps = tuple(range(first, first + 10))
            metrics = {"loss": tuple(1.0 / (1 + step) for step in steps)}
            send(reported(job, steps, metrics), job, first)
        writer.send(OutRecord("gangline.steps", job.encode(), b"garbage"))
    return broker


def drain(broker: Broker, group: Group, client: Client, at: int) -> bool:
    """Ingest everything, 4 records an INSERT; whether it came to its end."""
    cache = RunCache(client)
    batches: dict[str, NewBatch] = {"steps": StepBatch, "metric_points": MetricBatch}
    new_batch: NewBatch = batches.get(group.table, lambda: EventBatch(cache))
    pipeline = Pipeline(
        replace(group, flush_after=timedelta(0)),
        broker.connect(f"tracker-{at}"),
        CrashingSink(client, at),
        new_batch,
        lambda: NOW,
        max_poll=4,
    )
    pipeline.seek()
    try:
        while pipeline.cycle(0.0):
            pass
        pipeline.flush()
    except Crash:
        return False
    finally:
        pipeline.close()
    return True


@pytest.mark.parametrize("survives", [1, 2, 3, 5, 8])
def test_crashes_at_every_point_lose_and_double_nothing(client: Client, survives: int) -> None:
    """Each process gets a few points further than the last one, then dies."""
    broker = filled()
    for group in (STEPS, EVENTS):
        attempts = 0
        while not drain(broker, group, client, survives if attempts < 20 else 10_000):
            attempts += 1
        assert attempts

    def rows(sql: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in client.query(sql).result_rows]

    assert rows("SELECT count(), uniqExact(partition, offset, step) FROM gangline.steps") == [
        (JOBS * 30, JOBS * 30)
    ]
    assert rows("SELECT count(), uniqExact(topic, partition, offset) FROM gangline.events") == [
        (JOBS * 7, JOBS * 7)
    ]
    runs = rows(
        "SELECT count(), min(gpu_seconds), max(gpu_seconds), any(user) FROM gangline.run_list"
    )
    assert runs == [(JOBS, 20.0, 20.0, "ann")]
    used = "count(), sum(gpu_seconds), max(cpus), sum(cpu_seconds), countIf(isNull(cpus))"
    assert rows(f"SELECT {used} FROM gangline.usage FINAL") == [
        (JOBS * 2, JOBS * 20.0, 1.5, JOBS * 6.0, JOBS)
    ]
    assert rows("SELECT count() FROM gangline.checkpoint_list") == [(JOBS * 2,)]


def logged_and_removed() -> Broker:
    """Points of three runs in one partition; two runs are removed, and one of these continues."""
    broker = Broker()
    bus = broker.connect("producer")
    create_topics(bus, TopicNames())
    writer = bus.writer()

    def point(run_id: str, step: int) -> MetricLogged:
        return MetricLogged(
            run_id=run_id, team="nlp", name=("loss",), step=(step,), time_ms=(0,), value=(1.0,)
        )

    events: list[MetricLogged | MetricsRemoved] = [
        *(point(run, step) for step in range(5) for run in ("gone", "stays", "again")),
        MetricsRemoved(run_id="again", team="nlp"),
        point("gone", 5),
        MetricsRemoved(run_id="gone", team="nlp"),
        point("again", 6),
        point("stays", 6),
    ]
    for number, event in enumerate(events):
        envelope = Envelope(f"event-{number}", "t", NOW, event.run_id, event)
        writer.send(encode(envelope, topic="gangline.metrics", partition=0))
    return broker


@pytest.mark.parametrize("survives", [1, 2, 3, 4, 5, 7])
def test_points_of_removed_runs_leave_whatever_crashes_when(client: Client, survives: int) -> None:
    broker, attempts = logged_and_removed(), 0
    while not drain(broker, METRICS, client, survives if attempts < 20 else 10_000):
        attempts += 1
    assert attempts

    def is_removed() -> bool:
        rows = client.query(
            "SELECT run_id, step FROM gangline.metric_points WHERE run_id != '' ORDER BY ALL"
        ).result_rows
        return [*rows] == [("again", 6), *(("stays", step) for step in (0, 1, 2, 3, 4, 6))]

    wait_until("the removal", is_removed)
    assert ClickHouseSink(client).positions(METRICS) == {("gangline.metrics", 0): 20}


def test_one_insert_is_one_part(client: Client) -> None:
    broker = filled()
    pipeline = Pipeline(STEPS, broker.connect("t"), ClickHouseSink(client), StepBatch, lambda: NOW)
    pipeline.seek()
    pipeline.cycle(0.0)
    pipeline.flush()
    pipeline.close()
    parts = client.query(
        "SELECT sum(rows), count() FROM system.parts WHERE database = 'gangline' "
        "AND table = 'steps' AND active"
    )
    assert parts.result_rows == [(JOBS * 30, 1)]


def test_a_database_of_another_bus_is_refused(client: Client) -> None:
    drain(filled(), STEPS, client, 10_000)
    empty = Broker()
    create_topics(empty.connect("x"), TopicNames())
    with pytest.raises(PositionError, match="fresh database"):
        drain(empty, STEPS, client, 10_000)
