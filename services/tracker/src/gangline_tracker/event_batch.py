"""Every event of the logs and request streams as one row, and what is derived from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from gangline_bus.codec import Received
from gangline_schemas.envelope import team_of
from gangline_schemas.events.checkpoints import (
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointDeleted,
)
from gangline_schemas.events.quota import UsageCharged
from gangline_schemas.events.scheduling import NodeAdmitted
from gangline_tracker.arrow import MILLISECONDS, dictionary, fields, ingested, millis, times
from gangline_tracker.batches import Insert
from gangline_tracker.incidents import incidents_table
from gangline_tracker.run_tags import tags_table
from gangline_tracker.runs import Run, evolve, job_of, model_of


class RunRows(Protocol):
    """The rows of `runs` as they are."""

    def find(self, jobs: Sequence[str]) -> Mapping[str, Run]:
        """The rows of these jobs as far as they exist."""

    def keep(self, runs: Iterable[Run]) -> None:
        """Remember rows that are about to be written."""

    def models(self) -> MutableMapping[str, str]:
        """The model of each node's GPUs, to be kept up to date by the caller."""


STRINGS = pa.map_(pa.string(), pa.string())
NUMBERS = pa.map_(pa.string(), pa.float64())
_USAGE = {
    **dict.fromkeys(("team", "job_id"), pa.string()),
    **dict.fromkeys(("attempt", "gpus"), pa.uint32()),
    **dict.fromkeys(("allocated_at", "released_at"), MILLISECONDS),
    **dict.fromkeys(("gpu_seconds", "cpus", "cpu_seconds"), pa.float64()),
}
_CHECKPOINTS = {
    **dict.fromkeys(("job_id", "status", "reason"), pa.string()),
    "attempt": pa.uint32(),
    **dict.fromkeys(("step", "version"), pa.uint64()),
    "time": MILLISECONDS,
}
_COMMITTED = {
    "size_bytes": pa.uint64(),
    "objects": pa.uint32(),
    **dict.fromkeys(("write_s", "blocked_s", "verify_s"), pa.float64()),
}
_RUNS = {
    **dict.fromkeys(("job_id", "team", "project", "name", "user", "state"), pa.string()),
    **dict.fromkeys(("reason", "strategy", "code_ref", "data_snapshot", "spec"), pa.string()),
    "gpu_model": pa.string(),
    **dict.fromkeys(("attempt", "restarts", "gpus"), pa.uint32()),
    "priority": pa.uint8(),
    **dict.fromkeys(("started_at", "ended_at"), MILLISECONDS),
    "gpu_seconds": pa.float64(),
    "version": pa.uint64(),
}


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One status of one checkpoint."""

    job_id: str
    attempt: int
    step: int
    status: str
    time: datetime
    version: int
    committed: CheckpointCommitted | None = None
    reason: str = ""


class EventBatch:
    """All other topics -> events, with runs, checkpoints, incidents and usage derived from them.

    Derived rows are written first: they are the same however often they are written, and the
    INSERT into events makes them count as done. `topic_prefix` is left out of topic names.
    """

    def __init__(self, run_rows: RunRows, topic_prefix: str = "") -> None:
        self._run_rows = run_rows
        self._prefix = topic_prefix
        self._received: list[Received] = []

    def add(self, received: Received) -> None:
        """Take one event of any type."""
        self._received.append(received)

    def rows(self) -> int:
        """Events gathered so far."""
        return len(self._received)

    def inserts(self, at: datetime) -> list[Insert]:
        """INSERTs into runs, checkpoints and so on, as needed; then into events."""
        if not self._received:
            return []
        incidents = Insert("incidents", incidents_table(self._received))
        tags = Insert("run_tags", tags_table(self._received))
        derived = [self._runs(), self._checkpoints(), incidents, self._usage(), tags]
        parts = [*derived, self._events(at)]
        return [part for part in parts if part.rows.num_rows]

    def _events(self, at: datetime) -> Insert:
        envelopes = [item.envelope for item in self._received]
        columns = {
            "topic": dictionary([item.topic[len(self._prefix) :] for item in self._received]),
            "partition": pa.array([item.partition for item in self._received], pa.uint32()),
            "offset": pa.array([item.offset for item in self._received], pa.uint64()),
            "time": times([millis(item.time) for item in envelopes]),
            "type": dictionary([item.type for item in envelopes]),
            "id": pa.array([item.id for item in envelopes], pa.string()),
            "source": dictionary([item.source for item in envelopes]),
            "subject": pa.array([item.subject for item in envelopes], pa.string()),
            "team": dictionary([team_of(item.data) for item in envelopes]),
            "trace": pa.array([item.traceparent or "" for item in envelopes], pa.string()),
            "data": pa.array([item.data.encode().decode() for item in envelopes], pa.string()),
            "ingested": ingested(at, len(envelopes)),
        }
        return Insert("events", pa.table(columns))

    def _runs(self) -> Insert:
        jobs = {job for item in self._received if (job := job_of(item.envelope.data)) is not None}
        known = dict(self._run_rows.find(sorted(jobs)))
        before = dict(known)
        models = self._run_rows.models()
        for item in self._received:
            event = item.envelope.data
            if isinstance(event, NodeAdmitted):
                models[event.node.node_id] = model_of(event)
            job = job_of(event)
            if job is not None:
                run = known.get(job) or Run(job)
                known[job] = evolve(run, event, item.offset, item.envelope.time, models)
        changed = [run for job, run in sorted(known.items()) if run != before.get(job)]
        self._run_rows.keep(changed)
        return Insert("runs", runs_table(changed))

    def _checkpoints(self) -> Insert:
        rows = [row for item in self._received if (row := _checkpoint(item)) is not None]
        return Insert("checkpoints", _checkpoints_table(rows))

    def _usage(self) -> Insert:
        return Insert("usage", _usage_table(self._received))


def _usage_table(received: Sequence[Received]) -> pa.Table:
    charged = [
        (event, item.offset + 1)
        for item in received
        if isinstance(event := item.envelope.data, UsageCharged)
    ]
    columns = fields([event for event, _ in charged], _USAGE)
    versions = pa.array([version for _, version in charged], pa.uint64())
    return pa.table({**columns, "version": versions})


def _checkpoint(item: Received) -> CheckpointRow | None:
    event, at, version = item.envelope.data, item.envelope.time, item.offset + 1
    match event:
        case CheckpointCommitted():
            ref = event.checkpoint
            return CheckpointRow(
                event.job_id, ref.attempt, ref.step, "committed", at, version, committed=event
            )
        case CheckpointCorrupted() | CheckpointDeleted() | CheckpointAbandoned():
            status = event.type.removeprefix("checkpoint.")
            return CheckpointRow(
                event.job_id, event.attempt, event.step, status, at, version, reason=event.reason
            )
        case _:
            return None


def _checkpoints_table(rows: list[CheckpointRow]) -> pa.Table:
    done = [row.committed for row in rows]
    columns = {
        **fields(rows, _CHECKPOINTS),
        **fields(done, _COMMITTED, absent=0),
        "world_size": pa.array(
            [event.checkpoint.world_size if event else 0 for event in done], pa.uint32()
        ),
        "commit_key": pa.array(
            [event.checkpoint.commit_key if event else "" for event in done], pa.string()
        ),
        "metrics": pa.array(
            [list(event.metrics.items()) if event else [] for event in done], NUMBERS
        ),
    }
    return pa.table(columns)


def runs_table(runs: list[Run]) -> pa.Table:
    """Rows of `runs`."""
    submitted = [0 if run.submitted_at is None else millis(run.submitted_at) for run in runs]
    columns = {
        **fields(runs, _RUNS),
        "submitted_at": times(submitted),
        "hyperparameters": pa.array([list(run.hyperparameters.items()) for run in runs], STRINGS),
        "gpu_model_seconds": pa.array(
            [list(run.gpu_model_seconds.items()) for run in runs], NUMBERS
        ),
    }
    return pa.table(columns)
