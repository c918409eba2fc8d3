"""Notices of gangs that have not failed: troubles of training, stragglers."""

from __future__ import annotations

from datetime import datetime
from operator import itemgetter

from gangline_faults.core.lemons import distrust
from gangline_faults.core.model import Blame, Gang, GangReports, Liveness, Straggler
from gangline_faults.core.policy.distrust import STRAGGLED
from gangline_faults.core.policy.limits import FaultLimits
from gangline_faults.core.policy.progress import live_gangs
from gangline_faults.core.policy.stragglers import describe, note_slow, stragglers
from gangline_faults.core.policy.timing import Timing
from gangline_faults.core.state import FaultPlan, FaultState
from gangline_schemas.events.faults import GangTroubled, WorkerStraggling

TROUBLES_LIMIT = 20
"""Of one attempt; further troubles are in its metrics."""


def note_slow_ranks(state: FaultState, liveness: Liveness, now: datetime, timing: Timing) -> None:
    """Note in the soft state since when each rank is slow. O(ranks with heartbeats)."""
    for _, _, reports in live_gangs(state.gangs, liveness):
        note_slow(reports, now, timing)


def of_live_gangs(plan: FaultPlan, timing: Timing, limits: FaultLimits) -> None:
    """Decide at a Tick from the reports of the ranks of live gangs, by job id in order."""
    noted = [
        (job_id, gang, reports)
        for job_id, gang, reports in live_gangs(plan.state.gangs, plan.soft)
        if reports.troubled or reports.slow
    ]
    for job_id, gang, reports in sorted(noted, key=itemgetter(0)):
        _troubles(plan, job_id, gang, reports)
        for straggler in stragglers(reports, plan.now, timing):
            if straggler.score.rank not in gang.straggling:
                _straggling(plan, job_id, gang, straggler, limits)


def _troubles(plan: FaultPlan, job_id: str, gang: Gang, reports: GangReports) -> None:
    """Each kind at each step once, whichever rank reported it first."""
    for node_id in sorted(reports.troubled):
        for status in reports.ranks[node_id][1]:
            trouble, known = status.trouble, plan.state.gangs[job_id].troubles
            if trouble is None or len(known) >= TROUBLES_LIMIT:
                continue
            event = GangTroubled(
                job_id=job_id,
                attempt=gang.attempt,
                team=gang.team,
                kind=trouble.kind,
                rank=status.rank,
                node_id=node_id,
                step=trouble.step,
                message=trouble.message,
                noted_at=plan.now,
            )
            if event.key not in known:
                plan.add(job_id, event)


def _straggling(
    plan: FaultPlan, job_id: str, gang: Gang, straggler: Straggler, limits: FaultLimits
) -> None:
    one, now = straggler.score, plan.now
    event = WorkerStraggling(
        job_id=job_id,
        attempt=gang.attempt,
        team=gang.team,
        rank=one.rank,
        node_id=one.node_id,
        busy_s=one.busy_s,
        usual_s=straggler.usual_s,
        against=straggler.against,
        relative=one.relative,
        individual=one.individual,
        host=straggler.host,
        message=describe(straggler),
        since=straggler.since,
        noted_at=now,
        blamed=limits.stragglers_blamed,
    )
    plan.add(job_id, event)
    if event.blamed:
        distrust(plan, [one.node_id], Blame(job_id, STRAGGLED, now), limits)
