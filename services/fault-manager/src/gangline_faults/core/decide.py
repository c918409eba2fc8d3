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
from gangline_bus.plan import Plan
from gangline_bus.ports import TopicPartition
from gangline_faults.core import flags, gangs, health, incidents, invariants, notices
from gangline_faults.core.model import Health, Liveness
from gangline_faults.core.policy.limits import FaultLimits
from gangline_faults.core.policy.progress import find_hangs, note_gangs
from gangline_faults.core.policy.silence import (
    find_silences,
    find_strangers,
    forget,
    note_decision,
    note_heartbeat,
    note_stranger,
    note_tick,
    silent_s,
)
from gangline_faults.core.policy.timing import Timing
from gangline_faults.core.policy.trends import TrendLimits
from gangline_faults.core.state import FaultPlan, FaultState, fold
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic
from gangline_schemas.events.checkpoints import CheckpointCommitted
from gangline_schemas.events.faults import (
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
class FaultDecider(BaseDecider[FaultState, Liveness]):
    """Implements `Decider[FaultState, Liveness]`."""

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

    def initial_soft(self) -> Liveness:
        """No heartbeat was received."""
        return Liveness()

    def decide(
        self, state: FaultState, soft: Liveness, item: Input, now: datetime
    ) -> Sequence[Decision]:
        """The events that follow from one input; [] for old, foreign or known ones."""
        plan = Plan(state, soft, now, fold)
        if isinstance(item, Tick):
            self._tick(plan)
        elif isinstance(item, Received):
            self._take(plan, item.envelope.data, item.envelope.time)
        return plan.decisions

    def observe(
        self, state: FaultState, soft: Liveness, observed: Observed, now: datetime
    ) -> Liveness:
        """Note a heartbeat of a known incarnation; at a Tick, which ranks are slow.

        The first Tick notes the beginning of liveness: nothing else shows a takeover, and no
        verdict may rest on a clock that began before it.
        """
        match observed:
            case Received():
                if isinstance(observed.envelope.data, WorkerHeartbeat):
                    self._note_beat(state, soft, observed.envelope.data, observed.place, now)
            case Tick(read_until=read_until):
                note_tick(soft, now, self.timing, read_until)
                forget(soft, state.nodes)
                notices.note_slow_ranks(state, soft, now, self.timing)
            case Decision():
                note_decision(soft, observed.event, now)
        return soft

    def _note_beat(
        self,
        state: FaultState,
        soft: Liveness,
        beat: WorkerHeartbeat,
        place: TopicPartition,
        now: datetime,
    ) -> None:
        node = state.nodes.get(beat.node_id)
        if node is None and beat.joined:
            note_stranger(soft, beat.node_id, beat.incarnation, now)
        if node is None or node.incarnation != beat.incarnation or node.health is Health.LEFT:
            return
        note_heartbeat(soft, beat.node_id, place, now, self.timing)
        note_gangs(soft.gangs, state.gangs, beat.node_id, beat.gangs, now)
        health.note_heartbeat(soft, beat, now, self.trends)

    def check(self, state: FaultState) -> list[str]:
        """See invariants.py."""
        return invariants.violations(state)

    def _tick(self, plan: FaultPlan) -> None:
        self._judge_silences(plan)
        quiet: set[str] = set()
        if plan.state.settling:
            quiet = {
                node_id
                for node_id, node in plan.state.nodes.items()
                if not node.health.live
                or silent_s(plan.soft, node_id, plan.now) >= self.timing.settle_s
            }
        gangs.fail_settled(plan, self.timing.settle_s, quiet, self.limits)
        # A gang that waits for an explanation has failed already, and gets that one verdict.
        state = plan.state
        for job_id, hang in find_hangs(state.gangs, plan.soft, plan.now, self.timing).items():
            if job_id not in state.settling:
                gangs.fail(plan, job_id, state.gangs[job_id], gangs.hung(hang), self.limits)
        incidents.close_recovered(plan, self.timing)
        notices.of_live_gangs(plan, self.timing, self.limits)
        health.act(plan, self.trends, self.limits)
        for node_id, known in find_strangers(plan.soft, plan.now).items():
            plan.add(node_id, NodeFailed(node_id=node_id, incarnation=known, reason="forgotten"))
        gangs.forget_early(plan, EARLY_EXIT_S)

    def _judge_silences(self, plan: FaultPlan) -> None:
        nodes = plan.state.nodes
        found = find_silences(nodes, plan.soft, plan.now, self.timing)
        for node_id in found.recovered:
            node = nodes[node_id]
            recovered = NodeRecovered(
                node_id=node_id,
                incarnation=node.incarnation,
                was="failed" if node.health is Health.FAILED else "suspected",
            )
            plan.add(node_id, recovered)
        for node_id, gap_s in found.suspected.items():
            incarnation = nodes[node_id].incarnation
            suspected = NodeSuspected(node_id=node_id, incarnation=incarnation, silent_s=gap_s)
            plan.add(node_id, suspected)
        gone = {}
        for node_id, gap_s in found.failed.items():
            incarnation = nodes[node_id].incarnation
            silent = NodeFailed(
                node_id=node_id, incarnation=incarnation, reason="silent", silent_s=gap_s
            )
            plan.add(node_id, silent)
            gone[node_id, incarnation] = f"node {node_id} was silent for {gap_s:.0f} s"
        if gone:
            gangs.fail_gangs_on(plan, gone, self.limits, avoid=True, blame=True)

    def _take(self, plan: FaultPlan, event: Event, at: datetime) -> None:
        match event:
            case NodeJoined() | NodeAdmitted():
                _watch_node(plan, event.node.node_id, event.node.incarnation, self.limits)
            case NodeLeaving():
                _leave(plan, event)
            case NodeCordoned():
                health.before_drain(plan, event)
            case DataBlockDamaged():
                flags.flag(plan, event)
            case (
                GangAllocated()
                | GangReleased()
                | JobStateChanged()
                | WorkerExited()
                | CheckpointCommitted()
            ):
                gangs.take(plan, event, at, self.limits)
            case _:
                pass


def _watch_node(plan: FaultPlan, node_id: str, incarnation: str, limits: FaultLimits) -> None:
    watched = NodeWatched(node_id=node_id, incarnation=incarnation)
    old = plan.state.nodes.get(node_id)
    if old is not None:
        if incarnation == old.incarnation or incarnation in old.past:
            return
        if old.health.live:
            restarted = NodeFailed(node_id=node_id, incarnation=old.incarnation, reason="restarted")
            plan.add(node_id, restarted)
        # The node itself is back, so the next attempt may use it.
        gone = {(node_id, old.incarnation): f"the agent of node {node_id} restarted"}
        gangs.fail_gangs_on(plan, gone, limits, avoid=False)
    plan.add(node_id, watched)


def _leave(plan: FaultPlan, event: NodeLeaving) -> None:
    """It is not missed any more. Its gangs have not failed: the scheduler lets them save."""
    node = plan.state.nodes.get(event.node_id)
    if node is None or node.incarnation != event.incarnation or node.health is Health.LEFT:
        return
    left = NodeLeft(node_id=event.node_id, incarnation=event.incarnation)
    plan.add(event.node_id, left)
