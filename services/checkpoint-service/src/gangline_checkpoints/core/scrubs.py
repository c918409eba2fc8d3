"""The decision to read a committed checkpoint again: one at a time, first what was longest ago."""

from __future__ import annotations

from datetime import datetime
from itertools import islice

from gangline_checkpoints.core import archive
from gangline_checkpoints.core.policy.scrubbing import Scrubbing
from gangline_checkpoints.core.state import CheckpointPlan, CheckpointState, Stored
from gangline_schemas.events.checkpoints import ScrubBegun


def begin(plan: CheckpointPlan, rules: Scrubbing) -> None:
    """Begin with the one that is due, unless one is being read or has just been."""
    state = plan.state
    if state.scrubbing is not None:
        return
    if rules.rests(state.scrubbed_at, away=state.scrub_away, now=plan.now):
        return
    firsts = [*islice(state.verified_at.items(), 1), *_first_archived(state)]
    if not firsts:
        return
    (job_id, attempt, step), verified_at = min(firsts, key=lambda first: first[1])
    if rules.due(verified_at, plan.now):
        plan.add(job_id, ScrubBegun(job_id=job_id, attempt=attempt, step=step))


def _first_archived(state: CheckpointState) -> list[tuple[Stored, datetime]]:
    """The next checkpoint of the ended job that was read longest ago, if there is one."""
    job_id = next(iter(state.archive), None)
    if job_id is None:
        return []
    job, verified_at = archive.read(job_id, state.archive[job_id])
    healthy = [kept.id for kept in job.kept if kept.healthy]
    done = state.round[1] if state.round[0] == job_id else 0
    return [((job_id, *healthy[done]), verified_at)]
