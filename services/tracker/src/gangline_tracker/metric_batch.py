"""gangline.metrics -> metric_points: one row per point that an MLflow client logged. Pure."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from gangline_bus.codec import Received
from gangline_schemas.events.metrics import MetricLogged
from gangline_tracker.arrow import dictionary, ingested
from gangline_tracker.batches import Insert


class MetricBatch:
    """A `Batch`. A value that is no number is 0 with `is_nan`, as in MLflow's own tables."""

    def __init__(self) -> None:
        self._events: list[tuple[MetricLogged, int, int]] = []
        self._rows = 0

    def add(self, received: Received) -> None:
        """Take one metric.logged."""
        event = received.envelope.data
        if not isinstance(event, MetricLogged):
            raise TypeError(f"{event.type} is not a metric.logged")
        self._events.append((event, received.partition, received.offset))
        self._rows += len(event.name)

    def rows(self) -> int:
        """Points gathered so far."""
        return self._rows

    def inserts(self, at: datetime) -> list[Insert]:
        """One INSERT into metric_points; none when there is no point."""
        if not self._rows:
            return []
        teams: list[str] = []
        runs: list[str] = []
        names: list[str] = []
        steps: list[int] = []
        times: list[int] = []
        values: list[float | None] = []
        partitions: list[int] = []
        offsets: list[int] = []
        for event, partition, offset in self._events:
            length = len(event.name)
            teams += [event.team] * length
            runs += [event.run_id] * length
            names += event.name
            steps += event.step
            times += event.time_ms
            values += event.value
            partitions += [partition] * length
            offsets += [offset] * length
        value = pa.array(values, pa.float64())
        columns = {
            "team": dictionary(teams),
            "run_id": dictionary(runs),
            "name": dictionary(names),
            "step": pa.array(steps, pa.int64()),
            "time_ms": pa.array(times, pa.int64()),
            "value": value.fill_null(0.0),
            "is_nan": value.is_null(),
            "partition": pa.array(partitions, pa.uint32()),
            "offset": pa.array(offsets, pa.uint64()),
            "ingested": ingested(at, self._rows),
        }
        return [Insert("metric_points", pa.table(columns))]
