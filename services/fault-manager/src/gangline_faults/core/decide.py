"""The fault manager's decisions.

- node.joined, node.admitted: expect heartbeats of this incarnation; an older one is gone.
- worker.heartbeat: noted only. Ticks judge silence, hangs and stragglers (policy/silence.py,
  progress.py, stragglers.py) and report troubles of training (notices.py). Jobs are asked to save
  where a node's health predicts a failure (health.py).
- gang.allocated, gang.released, job.state.changed: which attempt is live, and where (gangs.py).
- checkpoint.committed: the job's progress, which its restart budget follows.
- worker.exited: explained by policy/classify.py; possible collateral damage waits `settle_s`.
- node.cordoned: gangs that will leave a node by their next checkpoint are asked for one.
- data.block.damaged: the job is flagged for review, once a block (flags.py).
- A failed attempt gets one gang.failed, which policy/budget.py turns into restart or fail, and one
  incident.closed when its job has recovered or ended (incidents.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gangline_bus.codec import Received
from gangline_bus.decision import BaseDecider, Decision, Fold, Input, Observed, Tick
from gangline_faults.core import flags, gangs, health, incidents, invariants, notices
from gangline_faults.core.model import Health
from gangline_faults.core.policy.limits import FaultLimits
from gangline_faults.core.policy.progress import find_hangs, note_gangs
from gangline_faults.core.policy.silence import (
    find_silences,
    find_strangers,
    note_heartbeat,
    note_stranger,
    note_tick,
    silent_s,
)
from gangline_faults.core.policy.timing import Timing
from gangline_faults.core.policy.trends import TrendLimits
from gangline_faults.core.state import FaultState, fold
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic
from gangline_schemas.events.checkpoints import CheckpointCommitted
from gangline_schemas.events.faults import (
    GangFailed,
    NodeDistrusted,
    NodeFailed,
    NodeLeft,
    NodeRecovered,
    NodeSuspected,
    NodeWatched,
)
from gangline_schemas.events.heartbeats import WorkerHeartbeat
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    JobStateChanged,
    NodeAdmitted,
    NodeCordoned,
)
from gangline_schemas.events.workers import DataBlockDamaged, NodeJoined, NodeLeaving, WorkerExited

EARLY_EXIT_S = 600.0
"""An exit of an unknown attempt is forgotten after this long."""


@dataclass(slots=True)
class FaultDecider(BaseDecider[FaultState]):
    """Implements `Decider[FaultState]`."""

    timing: Timing = field(default_factory=Timing)
    limits: FaultLimits = field(default_factory=FaultLimits)
    trends: TrendLimits = field(default_factory=TrendLimits)
    name: str = "fault-manager"
    log: Topic = Topic.FAULTS
    inputs: tuple[Topic, ...] = (Topic.SCHEDULING, Topic.WORKERS, Topic.CHECKPOINTS)
    signals: tuple[Topic, ...] = (Topic.HEARTBEATS,)
    fold: Fold[FaultState] = fold

    def initial(self) -> FaultState:
        """Nothing is watched."""
        return FaultState()

    def decide(self, state: FaultState, item: Input, now: datetime) -> Sequence[Decision]:
        """The events that follow from one input; [] for old, foreign or known ones."""
        if isinstance(item, Tick):
            return _distrusting_one(self._tick(state, now))
        if isinstance(item, Received):
            envelope = item.envelope
            return self._decide_event(state, envelope.data, envelope.time, now)
        return []

    def observe(self, state: FaultState, observed: Observed, now: datetime) -> None:
        """Note a heartbeat of a known incarnation; at a Tick, note which ranks are slow.

        The first Tick notes the beginning of liveness: nothing else shows a takeover, and no
        verdict may rest on a clock that began before it.
        """
        if isinstance(observed, Tick):
            note_tick(state.liveness, now, self.timing)
            notices.note_slow_ranks(state, now, self.timing)
            return
        beat = observed.envelope.data
        if not isinstance(beat, WorkerHeartbeat):
            return
        node = state.nodes.get(beat.node_id)
        if node is None and beat.joined:
            note_stranger(state.liveness, beat.node_id, beat.incarnation, now)
        if node is None or node.incarnation != beat.incarnation or node.health is Health.LEFT:
            return
        note_heartbeat(state.liveness, beat.node_id, now, self.timing)
        note_gangs(state.liveness.gangs, state.gangs, beat.node_id, beat.gangs, now)
        health.note_heartbeat(state, beat, now, self.trends)

    def check(self, state: FaultState) -> list[str]:
        """See invariants.py."""
        return invariants.violations(state)

    def _tick(self, state: FaultState, now: datetime) -> list[Decision]:
        decisions = self._judge_silences(state, now)
        decided = {
            decision.event.job_id
            for decision in decisions
            if isinstance(decision.event, GangFailed)
        }
        quiet: set[str] = set()
        if state.settling:
            quiet = {
                node_id
                for node_id, node in state.nodes.items()
                if not node.health.live
                or silent_s(state.liveness, node_id, now) >= self.timing.settle_s
            }
        settled = gangs.fail_settled(state, now, self.timing.settle_s, quiet, decided, self.limits)
        # A gang that waits for an explanation has failed already, and gets that one verdict.
        hangs = find_hangs(state.gangs, state.liveness, now, self.timing)
        hung = [
            decision
            for job_id, hang in hangs.items()
            if job_id not in decided and job_id not in state.settling
            for decision in gangs.failed(
                state, job_id, state.gangs[job_id], gangs.hung(hang), now, self.limits
            )
        ]
        failed = [*decisions, *settled, *hung]
        again = {decision.subject for decision in failed}
        recovered = [
            decision
            for decision in incidents.close_recovered(state, now, self.timing)
            if decision.subject not in again
        ]
        noted = [
            decision
            for decision in (
                *notices.of_live_gangs(state, now, self.timing, self.limits),
                *health.act(state, now, self.trends, self.limits),
            )
            if decision.subject not in again
        ]
        unknown = [
            Decision(node_id, NodeFailed(node_id=node_id, incarnation=known, reason="forgotten"))
            for node_id, known in find_strangers(state.liveness, now).items()
        ]
        return [
            *failed,
            *recovered,
            *noted,
            *unknown,
            *gangs.forget_early(state, now, EARLY_EXIT_S),
        ]

    def _judge_silences(self, state: FaultState, now: datetime) -> list[Decision]:
        found = find_silences(state.nodes, state.liveness, now, self.timing)
        decisions = []
        for node_id in found.recovered:
            node = state.nodes[node_id]
            recovered = NodeRecovered(
                node_id=node_id,
                incarnation=node.incarnation,
                was="failed" if node.health is Health.FAILED else "suspected",
            )
            decisions.append(Decision(node_id, recovered))
        for node_id, gap_s in found.suspected.items():
            incarnation = state.nodes[node_id].incarnation
            suspected = NodeSuspected(node_id=node_id, incarnation=incarnation, silent_s=gap_s)
            decisions.append(Decision(node_id, suspected))
        gone = {}
        for node_id, gap_s in found.failed.items():
            incarnation = state.nodes[node_id].incarnation
            silent = NodeFailed(
                node_id=node_id, incarnation=incarnation, reason="silent", silent_s=gap_s
            )
            decisions.append(Decision(node_id, silent))
            gone[node_id, incarnation] = f"node {node_id} was silent for {gap_s:.0f} s"
        failed = gangs.fail_gangs_on(state, gone, now, self.limits, avoid=True, blame=True)
        return [*decisions, *failed]

    def _decide_event(
        self, state: FaultState, event: Event, at: datetime, now: datetime
    ) -> list[Decision]:
        match event:
            case NodeJoined() | NodeAdmitted():
                node = event.node
                return _watch_node(state, node.node_id, node.incarnation, now, self.limits)
            case NodeLeaving():
                return _leave(state, event)
            case NodeCordoned():
                return health.before_drain(state, event, now)
            case DataBlockDamaged():
                return flags.flagged(state, event, now)
            case (
                GangAllocated()
                | GangReleased()
                | JobStateChanged()
                | WorkerExited()
                | CheckpointCommitted()
            ):
                return gangs.decide_event(state, event, at, now, self.limits)
            case _:
                return []


def _distrusting_one(decisions: Sequence[Decision]) -> list[Decision]:
    """All but later nodes to be distrusted: each was judged as if no other one were."""
    found, distrusts = [], False
    for decision in decisions:
        if isinstance(decision.event, NodeDistrusted):
            if distrusts:
                continue
            distrusts = True
        found.append(decision)
    return found


def _watch_node(
    state: FaultState, node_id: str, incarnation: str, now: datetime, limits: FaultLimits
) -> list[Decision]:
    watched = Decision(node_id, NodeWatched(node_id=node_id, incarnation=incarnation))
    old = state.nodes.get(node_id)
    if old is None:
        return [watched]
    if incarnation == old.incarnation or incarnation in old.past:
        return []
    decisions = []
    if old.health.live:
        restarted = NodeFailed(node_id=node_id, incarnation=old.incarnation, reason="restarted")
        decisions.append(Decision(node_id, restarted))
    # The node itself is back, so the next attempt may use it.
    gone = {(node_id, old.incarnation): f"the agent of node {node_id} restarted"}
    failed = gangs.fail_gangs_on(state, gone, now, limits, avoid=False)
    return [*decisions, *failed, watched]


def _leave(state: FaultState, event: NodeLeaving) -> list[Decision]:
    """It is not missed any more. Its gangs have not failed: the scheduler lets them save."""
    node = state.nodes.get(event.node_id)
    if node is None or node.incarnation != event.incarnation or node.health is Health.LEFT:
        return []
    left = NodeLeft(node_id=event.node_id, incarnation=event.incarnation)
    return [Decision(event.node_id, left)]
