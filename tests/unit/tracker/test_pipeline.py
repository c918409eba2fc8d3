"""A pipeline notices a failed INSERT, also when no further record comes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from gangline_bus.codec import encode
from gangline_bus.memory import Broker
from gangline_bus.topics import TopicNames, create_topics
from gangline_schemas.envelope import Envelope
from gangline_tracker.batches import StepBatch
from gangline_tracker.engine import EngineUnavailable
from gangline_tracker.ingest import STEPS, Group, Pipeline
from support.builders.gangs import reported

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
DEADLINE_S = 60.0


class AwaySink:
    """A database that acknowledges no INSERT."""

    def positions(self, group: Group) -> dict[tuple[str, int], int]:
        assert group.table == "steps"
        return {}

    def insert(self, table: str, rows: pa.Table) -> None:
        raise EngineUnavailable(f"the INSERT of {rows.num_rows} rows into {table} failed")

    def remove(self, table: str, run_ids: Sequence[str]) -> None:
        raise AssertionError(f"{len(run_ids)} removals from {table}")


def cycle_without_records(pipeline: Pipeline) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s:
        pipeline.cycle(0.0)
        time.sleep(0.01)


def test_a_failed_insert_ends_the_pipeline_of_a_quiet_topic() -> None:
    broker = Broker()
    bus = broker.connect("agent")
    create_topics(bus, TopicNames())
    event = reported("run-1", (1,), {"loss": (0.5,)})
    envelope = Envelope("step-1", "test", NOW, "run-1", event)
    bus.writer().send(encode(envelope, topic="gangline.steps"))
    group = replace(STEPS, flush_after=timedelta(0))
    pipeline = Pipeline(group, broker.connect("tracker"), AwaySink(), StepBatch, lambda: NOW)
    pipeline.seek()
    assert pipeline.cycle(0.0) == 1
    try:
        with pytest.raises(EngineUnavailable):
            cycle_without_records(pipeline)
    finally:
        pipeline.close()
