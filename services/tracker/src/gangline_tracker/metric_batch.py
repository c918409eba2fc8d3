"""gangline.metrics -> metric_points and run_tags: points and tags of MLflow's clients. Pure."""

from __future__ import annotations

from datetime import datetime
from itertools import chain

import pyarrow as pa

from gangline_bus.codec import Received
from gangline_schemas.events.metrics import MetricLogged, MetricsRemoved, TagsLogged
from gangline_tracker.arrow import dictionary, ingested
from gangline_tracker.batches import Insert, Removal
from gangline_tracker.run_tags import tags_table


class MetricBatch:
    """A `Batch`. A value that is not a number is 0 with `is_nan`, as in MLflow's own tables.

    A removal and tags leave a row of no run: the table's offsets are their position. Until that
    row is written, the records behind it are read again, and the removal or tags with them.
    """

    def __init__(self) -> None:
        self._events: dict[str, list[tuple[MetricLogged, int, int]]] = {}  # by run
        self._removed: dict[str, None] = {}
        self._tagged: list[Received] = []
        self._rows = 0

    def add(self, received: Received) -> None:
        """Take one event of gangline.metrics."""
        event = received.envelope.data
        if isinstance(event, MetricsRemoved):
            self._remove(event.run_id)
        if isinstance(event, TagsLogged):
            self._tagged.append(received)
        if isinstance(event, MetricsRemoved | TagsLogged):
            event = _MARK.model_copy(update={"team": event.team})
        if not isinstance(event, MetricLogged):
            raise TypeError(f"{event.type} is not a metric.logged, metric.removed or tags.logged")
        item = (event, received.partition, received.offset)
        self._events.setdefault(event.run_id, []).append(item)
        self._rows += len(event.name)

    def _remove(self, run_id: str) -> None:
        self._removed[run_id] = None
        self._rows -= sum(len(event.name) for event, _, _ in self._events.pop(run_id, ()))

    def rows(self) -> int:
        """Points gathered so far."""
        return self._rows

    def inserts(self, at: datetime) -> list[Insert | Removal]:
        """One INSERT into metric_points, after removals and tags; [] if nothing was added."""
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
        for event, partition, offset in chain.from_iterable(self._events.values()):
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
        removed = [Removal("metric_points", tuple(self._removed))] if self._removed else []
        tags = [Insert("run_tags", tags_table(self._tagged))] if self._tagged else []
        return [*removed, *tags, Insert("metric_points", pa.table(columns))]


_MARK = MetricLogged.model_construct(
    run_id="", team="", name=("",), step=(0,), time_ms=(0,), value=(0.0,)
)
"""The row of a removal and of tags."""
