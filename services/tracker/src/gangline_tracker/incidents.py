"""Failures as rows of `incidents`: open with gang.failed, closed with incident.closed. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from gangline_bus.codec import Received
from gangline_schemas.events.faults import GangFailed, IncidentClosed
from gangline_tracker.arrow import MILLISECONDS, fields

INCIDENT = GangFailed | IncidentClosed
"""The events that its rows are made of."""
OPEN = "open"
_FIELDS = {
    **dict.fromkeys(("team", "job_id", "action", "message"), pa.string()),
    "review": pa.bool_(),
    **dict.fromkeys(("attempt", "failures", "world_size"), pa.uint32()),
    **dict.fromkeys(("first_rank", "next_attempt"), pa.uint32()),
    **dict.fromkeys(("last_step", "committed_step", "resume_step"), pa.uint64()),
    **dict.fromkeys(("recover_s", "work_lost_s"), pa.float64()),
    **dict.fromkeys(("failed_at", "allocated_at", "running_at"), MILLISECONDS),
    **dict.fromkeys(("first_step_at", "closed_at"), MILLISECONDS),
}


def incidents_table(received: Iterable[Received]) -> pa.Table:
    """Rows of `incidents`: of each (job, attempt) the one with the highest version counts."""
    items = [
        (event, item.offset + 1)
        for item in received
        if isinstance(event := item.envelope.data, INCIDENT)
    ]
    events = [event for event, _ in items]
    return pa.table(
        {
            **fields(events, _FIELDS),
            **{
                name: pa.array([getattr(event, name).value for event in events], pa.string())
                for name in ("failure_class", "cause")
            },
            "outcome": pa.array([getattr(event, "outcome", OPEN) for event in events], pa.string()),
            "node_id": pa.array([event.node_id or "" for event in events], pa.string()),
            "avoid_nodes": pa.array(
                [list(event.avoid_nodes) for event in events], pa.list_(pa.string())
            ),
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
