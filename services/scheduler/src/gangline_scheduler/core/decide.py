"""The scheduler's decisions: the state of every job and the allocation of every GPU.

If the log's last `policy.configured` names other settings than these, they are decided first, and
gangs are kept off nodes whose agents are outdated by them (nodes.py). Then, for each input
1. Its effect on its job or node (jobs.py, checkpoints.py, nodes.py).
2. A full scheduling pass, if that freed or added capacity, raised a limit or removed a job from the
   queue. If it only added a job to the queue, a trial of that job (cycle.py); others are stopped
   for it if it is urgent or owed (preemption_plan.py). Inputs that were read together share one
   pass, at the end of their batch (owed.py).
3. Jobs without GPUs, with what all that leaves (cpu_jobs.py). Nothing before sees them.
On a tick: the actions of the policy in its order (actions.py), then features that all parts know
(rollout.py).

Decisions see the earlier ones of the same input, on a branch of the state (plan.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gangline_bus.codec import Received
from gangline_bus.decision import BaseDecider, BatchEnd, Decision, Input, Observed, Tick
from gangline_scheduler.core import (
    actions,
    checkpoints,
    cpu_jobs,
    cycle,
    invariants,
    jobs,
    nodes,
    owed,
    preemption_plan,
    relocate,
    rollout,
)
from gangline_scheduler.core.evolve import fold
from gangline_scheduler.core.owed import Owed
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.configured import Limits, configured
from gangline_scheduler.core.queue import PendingIndex
from gangline_scheduler.core.state import State
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic
from gangline_schemas.events.checkpoints import (
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointDeleted,
    CheckpointSaved,
    IntervalAdvised,
)
from gangline_schemas.events.faults import (
    GangFailed,
    NodeDistrusted,
    NodeFailed,
    NodeLeft,
    NodeRecovered,
)
from gangline_schemas.events.quota import (
    CancelAdmitted,
    DrainAdmitted,
    JobAdmitted,
    PriorityAdmitted,
    RestoreAdmitted,
    TeamBudgetChanged,
    TeamConfigured,
    TeamCpuBudgetChanged,
)
from gangline_schemas.events.scheduling import (
    GangReleased,
    JobStateChanged,
    NodeAdmitted,
    NodeUncordoned,
    TeamBudgetNoted,
    TeamCpuBudgetNoted,
    TeamNoted,
)
from gangline_schemas.events.workers import NodeJoined, NodeLeaving, WorkerExited, WorkerStarted
from gangline_schemas.features import FEATURES, Feature
from gangline_schemas.team_limits import TeamConfig


class Scheduler(BaseDecider[State, Owed | None]):
    """The decider of gangline.scheduling."""

    name = "scheduler"
    log = Topic.SCHEDULING
    inputs: tuple[Topic, ...] = (
        Topic.QUOTA, Topic.FAULTS, Topic.WORKERS, Topic.CHECKPOINTS, Topic.PARTS,
    )  # fmt: skip
    follows = True
    fold = fold

    def __init__(
        self,
        limits: Limits | None = None,
        policy: Policy | None = None,
        features: tuple[Feature, ...] = FEATURES,
    ) -> None:
        self._features = features
        self._limits = limits or Limits()
        self._policy = policy or Policy()
        self._configured = configured(self._policy, self._limits)

    def initial(self) -> State:
        """No teams, no nodes, no jobs."""
        policy = self._policy
        return State(
            queue=PendingIndex(policy.order.slot), levels=policy.levels, mix_from=policy.mix_from
        )

    def observe(
        self,
        state: State,  # noqa: ARG002 - see Decider
        soft: Owed | None,
        observed: Observed,
        now: datetime,  # noqa: ARG002
    ) -> Owed | None:
        """Note whether a pass is owed."""
        return owed.after(soft or Owed(), observed)

    def decide(
        self, state: State, soft: Owed | None, item: Input, now: datetime
    ) -> Sequence[Decision]:
        """See the module's docstring. A repeated or outdated input leads to nothing."""
        plan = Plan(state, now)
        if isinstance(item, Tick | Received) and state.policy != self._configured:
            plan.add("policy", self._configured)
            nodes.check_agents(plan, self._limits.oldest_agents)
        before = len(plan.decisions)
        if isinstance(item, Tick):
            actions.run(plan, self._policy, self._limits)
            cpu_jobs.tick(plan, self._policy, before)
            rollout.enable(plan, self._features)
        elif isinstance(item, Received):
            _take(plan, item.envelope.data, self._limits)
            self._schedule(state, plan, item, before, waits=_waits(soft, item))
            cpu_jobs.follow(plan, self._policy, before)
            rollout.note(plan, item.envelope)
        elif isinstance(item, BatchEnd) and soft is not None and soft.a_pass:
            cycle.run_pass(plan, self._policy, most_fruitless=cycle.MOST_FRUITLESS)
            cpu_jobs.follow(plan, self._policy, before)
        return plan.decisions

    def check(self, state: State) -> list[str]:
        """Invariants that do not hold; see invariants.py."""
        return invariants.violations(state)

    def _schedule(
        self, state: State, plan: Plan, item: Received, before: int, *, waits: bool
    ) -> None:
        """`state`: as it was; `before`: the decisions that this input did not lead to.

        `waits`: inputs that were read with it made room, and the pass follows all of them.
        """
        cause, new = item.envelope.data, len(plan.decisions) > before
        if isinstance(cause, DrainAdmitted) and new:
            relocate.leave(plan, self._policy)
        elif isinstance(cause, CheckpointCommitted) and new:
            relocate.saved(plan, self._policy, cause)
        decided = [decision.event for decision in plan.decisions[before:]]
        joined = cause if isinstance(cause, JobAdmitted) and decided else None
        if (
            joined is None
            and not item.together
            and any(_makes_room(state, plan, event) for event in decided)
        ):
            cycle.run_pass(plan, self._policy, most_fruitless=cycle.MOST_FRUITLESS)
        if joined is not None and not waits:
            self._joined(plan, joined.job_id)
        actions.explain_new(plan, self._policy, decided)

    def _joined(self, plan: Plan, job_id: str) -> None:
        if job_id not in plan.state.pending or cycle.guarded(plan, self._policy, job_id):
            return
        cycle.try_alone(plan, self._policy, job_id)
        preemption_plan.stop_for(plan, self._policy, job_id)


def _waits(soft: Owed | None, item: Received) -> bool:
    return item.together and soft is not None and soft.a_pass


def _makes_room(state: State, plan: Plan, event: Event) -> bool:
    """Whether a waiting job with GPUs may fit after this event that did not before."""
    if not owed.makes_room(event):
        return False
    match event:
        case NodeAdmitted(node=info):
            return bool(info.gpus)
        case NodeUncordoned(node_id=node_id):
            node = plan.state.nodes.get(node_id)
            return node is None or bool(node.info.gpus)
        case GangReleased(job_id=job_id) | JobStateChanged(job_id=job_id):
            return not cpu_jobs.is_cpu_job(state, plan, job_id)
    return True


def _note_team(plan: Plan, config: TeamConfig) -> None:
    known = plan.state.teams.get(config.team)
    if known is None or known.config != config:
        plan.add(config.team, TeamNoted(config=config))


def _note_budget(plan: Plan, event: TeamBudgetChanged | TeamCpuBudgetChanged) -> None:
    of_gpus = isinstance(event, TeamBudgetChanged)
    known = plan.state.over_budget if of_gpus else plan.state.over_cpu_budget
    if known.get(event.team) != (event.month if event.exhausted else None):
        noted = TeamBudgetNoted if of_gpus else TeamCpuBudgetNoted
        spent = noted(team=event.team, month=event.month, exhausted=event.exhausted)
        plan.add(event.team, spent)


def _take(  # noqa: C901, PLR0912 - one case for each input type
    plan: Plan, event: Event, limits: Limits
) -> None:
    """The decisions about its job, node or team that one event from outside leads to."""
    match event:
        case WorkerStarted():
            jobs.started(plan, event)
        case WorkerExited():
            if event.damaged_object is not None:
                checkpoints.damaged(plan, event, event.damaged_object)
            jobs.exited(plan, event)
        case JobAdmitted():
            jobs.admit(plan, event)
        case CancelAdmitted():
            jobs.cancel(plan, event.job_id)
        case PriorityAdmitted():
            jobs.reprioritize(plan, event.job_id, event.priority)
        case RestoreAdmitted():
            jobs.restore(plan, event.job_id, event.step)
        case GangFailed():
            jobs.failed(plan, event, limits.save_wait)
        case CheckpointCommitted():
            checkpoints.committed(plan, event)
            jobs.restart_if_saved(plan, event.job_id)
        case CheckpointSaved():
            checkpoints.saved(plan, event)
        case CheckpointAbandoned():
            jobs.restart_without(plan, event)
        case CheckpointDeleted() | CheckpointCorrupted():
            checkpoints.lost(plan, event)
        case IntervalAdvised():
            checkpoints.advised(plan, event)
        case NodeJoined():
            nodes.joined(plan, event.node, limits.oldest_agents)
        case NodeLeaving():
            nodes.leaving(plan, event)
        case NodeFailed():
            nodes.failed(plan, event)
        case NodeLeft():
            nodes.left(plan, event)
        case NodeRecovered():
            nodes.recovered(plan, event, limits.oldest_agents)
        case NodeDistrusted():
            nodes.distrusted(plan, event)
        case DrainAdmitted():
            nodes.drain(plan, event.node_id, on=event.drain, move_jobs=event.move_jobs)
        case TeamConfigured():
            _note_team(plan, event.config)
        case TeamBudgetChanged() | TeamCpuBudgetChanged():
            _note_budget(plan, event)
