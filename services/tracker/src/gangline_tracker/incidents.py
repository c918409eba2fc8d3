"""Failures as rows of `incidents`: open with gang.failed, closed with incident.closed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pyarrow as pa

from gangline_bus.codec import Received
from gangline_schemas.events.faults import GangFailed, IncidentClosed
from gangline_tracker.arrow import millis, times

INCIDENT = GangFailed | IncidentClosed
"""The events that its rows are made of."""
OPEN = "open"
_TEXTS = ("job_id", "action", "message")
_NAMES = ("failure_class", "cause")
_COUNTS = (("attempt", pa.uint32()), ("failures", pa.uint32()), ("world_size", pa.uint32()))
_MAYBE = (
    ("first_rank", pa.uint32()),
    ("last_step", pa.uint64()),
    ("committed_step", pa.uint64()),
    ("resume_step", pa.uint64()),
    ("next_attempt", pa.uint32()),
    ("recover_s", pa.float64()),
)
_TIMES = ("failed_at", "allocated_at", "running_at", "first_step_at", "closed_at")


def incidents_table(received: Iterable[Received]) -> pa.Table:
    """Rows of `incidents`: of each (job, attempt) the one with the highest version counts."""
    items = [
        (event, item.offset + 1)
        for item in received
        if isinstance(event := item.envelope.data, INCIDENT)
    ]
    events = [event for event, _ in items]

    def column(name: str, kind: pa.DataType) -> pa.Array:
        found: list[Any] = [getattr(event, name, None) for event in events]
        return pa.array(found, kind)

    def moments(name: str) -> pa.Array:
        found: list[datetime | None] = [getattr(event, name, None) for event in events]
        return times([None if moment is None else millis(moment) for moment in found])

    return pa.table(
        {
            "team": column("team", pa.string()),
            **{name: column(name, pa.string()) for name in _TEXTS},
            **{
                name: pa.array([getattr(event, name).value for event in events], pa.string())
                for name in _NAMES
            },
            "outcome": pa.array([getattr(event, "outcome", OPEN) for event in events], pa.string()),
            "node_id": pa.array([event.node_id or "" for event in events], pa.string()),
            "avoid_nodes": pa.array(
                [list(event.avoid_nodes) for event in events], pa.list_(pa.string())
            ),
            "review": column("review", pa.bool_()),
            **{name: column(name, kind) for name, kind in (*_COUNTS, *_MAYBE)},
            **{name: moments(name) for name in _TIMES},
            "work_lost_s": column("work_lost_s", pa.float64()),
            "down_s": pa.array([getattr(event, "down_s", 0.0) for event in events], pa.float64()),
            "lost_gpu_s": pa.array([_lost_gpu_s(event) for event in events], pa.float64()),
            "version": pa.array([version for _, version in items], pa.uint64()),
        }
    )


def _lost_gpu_s(event: GangFailed | IncidentClosed) -> float:
    """While an incident is open: of its work alone."""
    if isinstance(event, IncidentClosed):
        return event.lost_gpu_s
    return event.work_lost_s * event.world_size
