"""Decisions about nodes' health: jobs save before the failure, not after it.

The policy is policy/trends.py. If a node has just reported a sign, each live gang with ranks on it
is asked to save (`checkpoint.requested`) at the next Tick, at most once in `save_every_s`. A broken
node is distrusted, unless half of all nodes broke within the window. Gangs on a draining node are
asked too. A drain does not point to a failure, so neither request delays the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from gangline_faults.core.model import Liveness
from gangline_faults.core.policy.distrust import may_distrust
from gangline_faults.core.policy.limits import FaultLimits
from gangline_faults.core.policy.trends import Sign, TrendLimits, note_reading
from gangline_faults.core.state import FaultPlan, FaultState
from gangline_schemas.clocks import near
from gangline_schemas.events.faults import CheckpointRequested, NodeDistrusted
from gangline_schemas.events.heartbeats import WorkerHeartbeat
from gangline_schemas.events.scheduling import NodeCordoned

FRESH_S = 10.0
"""Older signs lead to nothing: they were acted on, or the limits were against it."""
BROKEN_SHARE = 0.5


def note_heartbeat(
    liveness: Liveness, beat: WorkerHeartbeat, now: datetime, limits: TrendLimits
) -> None:
    """Keep what the health in a heartbeat says."""
    if beat.health is not None:
        known = liveness.health.get(beat.node_id)
        readings = note_reading(known, beat.incarnation, beat.health, now, limits)
        liveness.health[beat.node_id] = readings


def act(plan: FaultPlan, trends: TrendLimits, limits: FaultLimits) -> None:
    """Decide at a Tick. Cost: O(gangs x nodes that have just reported a sign)."""
    now = plan.now
    for node_id, readings in sorted(plan.soft.health.items()):
        fresh = [sign for sign in readings.signs if near(sign.at, now, FRESH_S)]
        node = plan.state.nodes.get(node_id)
        if not fresh or node is None or node.incarnation != readings.incarnation:
            continue
        here = _on(plan.state, node_id, node.incarnation)
        reason = f"node {node_id}: {_sentence(fresh)}"
        for job_id in here:
            if _may_ask(plan, job_id, trends):
                _ask(plan, job_id, reason, node_id)
        if _may_distrust(plan, node_id, fresh, limits):
            _distrust(plan, node_id, fresh, len(here))


def before_drain(plan: FaultPlan, event: NodeCordoned) -> None:
    """Gangs leave a draining node right after a save, so they are asked for one now.

    A gang that was asked a moment ago is left out: the drain may be reported twice, or be of two of
    its nodes. Cost: O(gangs).
    """
    if event.reason != "drain" or not event.move_jobs:
        return
    reason = f"node {event.node_id} is being drained"
    for job_id in _on(plan.state, event.node_id, event.incarnation):
        if _longer_ago(plan.state.gangs[job_id].drained, plan.now, FRESH_S):
            _ask(plan, job_id, reason)


def _on(state: FaultState, node_id: str, incarnation: str) -> list[str]:
    """The jobs of the gangs that run there."""
    return [
        job_id
        for job_id, gang in sorted(state.gangs.items())
        if gang.runs_on(node_id, incarnation) and not gang.failed
    ]


def _ask(plan: FaultPlan, job_id: str, reason: str, expected_of: str | None = None) -> None:
    event = CheckpointRequested(
        job_id=job_id,
        attempt=plan.state.gangs[job_id].attempt,
        reason=reason,
        node_id=expected_of,
        requested_at=plan.now,
    )
    plan.add(job_id, event)


def _sentence(signs: Iterable[Sign]) -> str:
    return ", ".join(sign.message for sign in signs)


def _may_ask(plan: FaultPlan, job_id: str, trends: TrendLimits) -> bool:
    every_s = trends.save_every_s
    return bool(every_s) and _longer_ago(plan.state.save_requested.get(job_id), plan.now, every_s)


def _longer_ago(last: datetime | None, now: datetime, seconds: float) -> bool:
    return last is None or not near(last, now, seconds)


def _may_distrust(plan: FaultPlan, node_id: str, fresh: list[Sign], limits: FaultLimits) -> bool:
    state = plan.state
    broken_at = max((sign.at for sign in fresh if sign.broken), default=None)
    last = state.distrusted.get(node_id)
    if broken_at is None or not limits.distrust_after or (last is not None and last >= broken_at):
        return False
    others = {other: at for other, at in state.distrusted.items() if other != node_id}
    generous = replace(limits, distrust_share=BROKEN_SHARE)
    return may_distrust(others, state.nodes, plan.now, generous)


def _distrust(plan: FaultPlan, node_id: str, fresh: list[Sign], jobs: int) -> None:
    state, now = plan.state, plan.now
    blames = state.blames.get(node_id, ())
    event = NodeDistrusted(
        node_id=node_id,
        incarnation=state.nodes[node_id].incarnation,
        failures=len(blames) + 1,
        jobs=max(1, jobs, len({blame.job_id for blame in blames})),
        since=blames[0].at if blames else now,
        distrusted_at=now,
        reason=_sentence(sign for sign in fresh if sign.broken),
    )
    plan.add(node_id, event)
