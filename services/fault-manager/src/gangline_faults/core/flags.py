"""Jobs flagged for review: they continue without a block of their data.

A block is flagged once for a job, whichever rank reports it first and however often. All ranks
leave out the same blocks, and a restarted attempt meets them again.
"""

from __future__ import annotations

from gangline_faults.core.state import FLAGS_OF_A_JOB, FaultPlan, flag_of
from gangline_schemas.events.faults import JobFlagged
from gangline_schemas.events.workers import DataBlockDamaged


def flag(plan: FaultPlan, event: DataBlockDamaged) -> None:
    """Decide at most one event; what is more than `FLAGS_OF_A_JOB` says nothing new."""
    known = plan.state.flags.get(event.job_id, ())
    if flag_of(event) in known or len(known) >= FLAGS_OF_A_JOB:
        return
    flagged = JobFlagged(
        job_id=event.job_id,
        attempt=event.attempt,
        rank=event.rank,
        node_id=event.node_id,
        snapshot=event.snapshot,
        shard=event.shard,
        block=event.block,
        reason=event.reason,
        flagged_at=plan.now,
    )
    plan.add(event.job_id, flagged)
