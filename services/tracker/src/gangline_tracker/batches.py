"""Rows of one INSERT, gathered from records. Pure: what to write, never when or where.

A batch holds whole records only, so that a table's max(offset) says what it has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gangline_bus.codec import Received
from gangline_schemas.events.heartbeats import NodeUse, WorkerHeartbeat
from gangline_schemas.events.logs import WorkerLog
from gangline_schemas.events.steps import WorkerStep
from gangline_tracker.arrow import dictionary, ingested, millis, times


@dataclass(frozen=True, slots=True)
class Insert:
    """One INSERT: a table's name and its rows."""

    table: str
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class Removal:
    """All rows of these runs leave a table."""

    table: str
    run_ids: tuple[str, ...]


class Batch(Protocol):
    """Gathers records of one group of topics; the last INSERT is the one with the offsets."""

    def add(self, received: Received) -> None:
        """Take a decoded record, whole or not at all.

        Its numbers fit the columns: the schemas bound them. Raises TypeError when its type does
        not belong here.
        """

    def rows(self) -> int:
        """Rows gathered so far."""

    def inserts(self, at: datetime) -> Sequence[Insert | Removal]:
        """The inserts to write, in order, with `at` as the time of ingestion; empties the batch.

        Removals come first: after a crash they come again.
        """


NewBatch = Callable[[], Batch]


class _Codes:
    """Strings as dictionary codes, for columns that are built number by number."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, value: str) -> int:
        return self._codes.setdefault(value, len(self._codes))

    def column(self, codes: npt.NDArray[np.int32]) -> pa.Array:
        return pa.DictionaryArray.from_arrays(
            pa.array(codes), pa.array(list(self._codes), pa.string())
        )


class StepBatch:
    """gangline.steps -> steps: one row per value. A step without the metric has no row.

    A record without any value leaves no row and so no position; it is read again after a restart.
    """

    def __init__(self) -> None:
        self._teams, self._runs, self._names = _Codes(), _Codes(), _Codes()
        self._records: list[tuple[int, int, int, int, int, int, int]] = []
        self._shapes: dict[tuple[str, ...], npt.NDArray[np.int32]] = {}
        self._name_codes: list[npt.NDArray[np.int32]] = []
        self._steps: list[npt.NDArray[np.uint64]] = []
        self._times: list[npt.NDArray[np.int64]] = []
        self._values: list[npt.NDArray[np.float64]] = []
        self._rows = 0

    def add(self, received: Received) -> None:
        """Take one worker.step."""
        event = received.envelope.data
        if not isinstance(event, WorkerStep):
            raise TypeError(f"{event.type} is not a worker.step")
        names, steps = tuple(event.metrics), len(event.step)
        codes = self._shapes.get(names)
        if codes is None:
            codes = np.array([self._names.code(name) for name in names], dtype=np.int32)
            self._shapes[names] = codes
        values = list(chain.from_iterable(event.metrics.values()))
        team, run = self._teams.code(event.team), self._runs.code(event.run_id)
        place = (received.partition, received.offset)
        self._records.append((team, run, event.attempt, event.rank, *place, len(values)))
        self._name_codes.append(codes.repeat(steps))
        self._steps += [np.array(event.step, dtype=np.uint64)] * len(names)
        self._times += [np.array(event.time_ms, dtype=np.int64)] * len(names)
        self._values.append(np.array(values, dtype=np.float64))  # None becomes NaN: not reported
        self._rows += len(values)

    def rows(self) -> int:
        """Values gathered so far, with those that are missing."""
        return self._rows

    def inserts(self, at: datetime) -> list[Insert]:
        """One INSERT into steps; none without values."""
        if not self._rows:
            return []
        records = np.array(self._records, dtype=np.int64)
        of_rows = np.repeat(np.arange(len(records)), records[:, 6])

        def column(place: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
            return records[:, place].astype(kind)[of_rows]

        time = pa.array(np.concatenate(self._times))
        columns = {
            "team": self._teams.column(column(0, np.int32)),
            "run_id": self._runs.column(column(1, np.int32)),
            "attempt": pa.array(column(2, np.uint32)),
            "rank": pa.array(column(3, np.uint32)),
            "step": pa.array(np.concatenate(self._steps)),
            "time": time.cast(pa.timestamp("ms", tz="UTC")),
            "name": self._names.column(np.concatenate(self._name_codes)),
            "value": pa.array(values := np.concatenate(self._values)),
            "partition": pa.array(column(4, np.uint32)),
            "offset": pa.array(column(5, np.uint64)),
            "ingested": ingested(at, self._rows),
        }
        rows, missing = pa.table(columns), np.isnan(values)
        if missing.any():
            rows = rows.filter(pa.array(~missing))
        return [Insert("steps", rows)] if rows.num_rows else []


class LogBatch:
    """gangline.logs -> logs: one row per line."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, str, int, int, str, int, int, str, str, int, int]] = []

    def add(self, received: Received) -> None:
        """Take one worker.log."""
        event = received.envelope.data
        if not isinstance(event, WorkerLog):
            raise TypeError(f"{event.type} is not a worker.log")
        for number, line in enumerate(event.lines, start=event.first_line):
            self._rows.append(
                (
                    event.team, event.job_id, event.attempt, event.rank, event.node_id, number,
                    line.time_ms, line.stream, line.text, received.partition, received.offset,
                )
            )  # fmt: skip

    def rows(self) -> int:
        """Lines gathered so far."""
        return len(self._rows)

    def inserts(self, at: datetime) -> list[Insert]:
        """One INSERT into logs."""
        if not self._rows:
            return []
        team, job, attempt, rank, node, line, time, stream, text, partition, offset = zip(
            *self._rows, strict=True
        )
        columns = {
            "team": dictionary(team),
            "job_id": dictionary(job),
            "attempt": pa.array(attempt, pa.uint32()),
            "rank": pa.array(rank, pa.uint32()),
            "node_id": dictionary(node),
            "line": pa.array(line, pa.uint64()),
            "time": times(time),
            "stream": dictionary(stream),
            "text": pa.array(text, pa.string()),
            "partition": pa.array(partition, pa.uint32()),
            "offset": pa.array(offset, pa.uint64()),
            "ingested": ingested(at, len(self._rows)),
        }
        return [Insert("logs", pa.table(columns))]


class HeartbeatBatch:
    """gangline.heartbeats -> heartbeats: one row per record."""

    def __init__(self) -> None:
        self._received: list[tuple[WorkerHeartbeat, int, int]] = []

    def add(self, received: Received) -> None:
        """Take one worker.heartbeat."""
        event = received.envelope.data
        if not isinstance(event, WorkerHeartbeat):
            raise TypeError(f"{event.type} is not a worker.heartbeat")
        self._received.append((event, received.partition, received.offset))

    def rows(self) -> int:
        """Heartbeats gathered so far."""
        return len(self._received)

    def inserts(self, at: datetime) -> list[Insert]:
        """One INSERT into heartbeats."""
        if not self._received:
            return []
        beats = [beat for beat, _, _ in self._received]
        floats = pa.list_(pa.float64())
        columns = {
            "node_id": dictionary([beat.node_id for beat in beats]),
            "incarnation": dictionary([beat.incarnation for beat in beats]),
            "sequence": pa.array([beat.sequence for beat in beats], pa.uint64()),
            "time": times([millis(beat.sent_at) for beat in beats]),
            "cpu_percent": pa.array([beat.cpu_percent for beat in beats], pa.float64()),
            "memory_used_gb": pa.array([beat.memory_used_gb for beat in beats], pa.float64()),
            "jobs": pa.array(
                [sorted({gang.job_id for gang in beat.gangs}) for beat in beats],
                pa.list_(pa.string()),
            ),
            "gpu_index": pa.array(
                [[gpu.index for gpu in beat.gpus] for beat in beats], pa.list_(pa.uint32())
            ),
            "gpu_utilization": pa.array(
                [[gpu.utilization for gpu in beat.gpus] for beat in beats], floats
            ),
            "gpu_memory_used_gb": pa.array(
                [[gpu.memory_used_gb for gpu in beat.gpus] for beat in beats], floats
            ),
            "gpu_temperature_c": pa.array(
                [[gpu.temperature_c for gpu in beat.gpus] for beat in beats], floats
            ),
            **_uses([beat.use for beat in beats]),
            "gpu_power_w": pa.array([_by_gpu(beat, "power_w") for beat in beats], floats),
            "gpu_sm_percent": pa.array([_by_gpu(beat, "sm_percent") for beat in beats], floats),
            "partition": pa.array([place for _, place, _ in self._received], pa.uint32()),
            "offset": pa.array([offset for _, _, offset in self._received], pa.uint64()),
            "ingested": ingested(at, len(beats)),
        }
        return [Insert("heartbeats", pa.table(columns))]


_USES = (
    "disk_read_mb_s", "disk_write_mb_s", "disk_free_gb", "disk_used_percent",
    "network_receive_mb_s", "network_send_mb_s",
)  # fmt: skip


def _uses(uses: list[NodeUse | None]) -> dict[str, pa.Array]:
    return {
        name: pa.array([getattr(use, name, None) for use in uses], pa.float64()) for name in _USES
    }


def _by_gpu(beat: WorkerHeartbeat, name: str) -> list[float | None]:
    """A value of each GPU of the heartbeat; [] without a reading."""
    if beat.use is None:
        return []
    known = {gpu.index: getattr(gpu, name) for gpu in beat.use.gpus}
    return [known.get(gpu.index) for gpu in beat.gpus]
