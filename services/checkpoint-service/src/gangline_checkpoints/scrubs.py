"""The decision to read a committed checkpoint again: one at a time, first what was longest ago."""

from __future__ import annotations

from datetime import datetime

from gangline_bus.decision import Decision
from gangline_checkpoints.policy.scrubbing import Scrubbing
from gangline_checkpoints.state import CheckpointState
from gangline_schemas.events.checkpoints import ScrubBegun


def begin(state: CheckpointState, rules: Scrubbing, now: datetime) -> list[Decision]:
    """Begin with the one that is due, unless one is being read or has just been."""
    if state.scrubbing is not None or not state.right:
        return []
    if rules.rests(state.scrubbed_at, away=state.scrub_away, now=now):
        return []
    (job_id, attempt, step), right_at = next(iter(state.right.items()))
    if not rules.due(right_at, now):
        return []
    return [Decision(job_id, ScrubBegun(job_id=job_id, attempt=attempt, step=step))]
