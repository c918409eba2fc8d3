"""Notices of gangs that have not failed: troubles of training, stragglers."""

from __future__ import annotations

from datetime import datetime
from operator import itemgetter

from gangline_bus.decision import Decision
from gangline_faults.core.lemons import distrust
from gangline_faults.core.model import Blame, Gang, GangReports, Straggler
from gangline_faults.core.policy.distrust import STRAGGLED
from gangline_faults.core.policy.limits import FaultLimits
from gangline_faults.core.policy.progress import live_gangs
from gangline_faults.core.policy.stragglers import describe, note_slow, stragglers
from gangline_faults.core.policy.timing import Timing
from gangline_faults.core.state import FaultState
from gangline_schemas.events.faults import GangTroubled, WorkerStraggling

TROUBLES_LIMIT = 20
"""Of one attempt; further troubles are in its metrics."""


def note_slow_ranks(state: FaultState, now: datetime, timing: Timing) -> None:
    """Note in the soft state since when each rank is slow. O(ranks with heartbeats)."""
    for _, _, reports in live_gangs(state.gangs, state.liveness):
        note_slow(reports, now, timing)


def of_live_gangs(
    state: FaultState, now: datetime, timing: Timing, limits: FaultLimits
) -> list[Decision]:
    """The decisions at a Tick from the reports of the ranks of live gangs, by job id in order."""
    noted = [
        (job_id, gang, reports)
        for job_id, gang, reports in live_gangs(state.gangs, state.liveness)
        if reports.troubled or reports.slow
    ]
    decisions: list[Decision] = []
    for job_id, gang, reports in sorted(noted, key=itemgetter(0)):
        decisions += _troubles(job_id, gang, reports, now)
        for straggler in stragglers(reports, now, timing):
            if straggler.score.rank not in gang.straggling:
                decisions += _straggling(state, job_id, gang, straggler, now, limits)
    return decisions


def _troubles(job_id: str, gang: Gang, reports: GangReports, now: datetime) -> list[Decision]:
    """Each kind at each step once, whichever rank reported it first."""
    known = {*gang.troubles}
    decisions = []
    for node_id in sorted(reports.troubled):
        for status in reports.ranks[node_id][1]:
            trouble = status.trouble
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
                noted_at=now,
            )
            if event.key not in known:
                known.add(event.key)
                decisions.append(Decision(job_id, event))
    return decisions


def _straggling(
    state: FaultState,
    job_id: str,
    gang: Gang,
    straggler: Straggler,
    now: datetime,
    limits: FaultLimits,
) -> list[Decision]:
    one = straggler.score
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
    decisions = [Decision(job_id, event)]
    if event.blamed:
        blame = Blame(job_id, STRAGGLED, now)
        decisions += distrust(state, [one.node_id], blame, limits)
    return decisions
