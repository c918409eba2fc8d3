"""The fold of gangline.faults: what is watched, what failed, how many restarts were used."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from gangline_bus.decision import Fold
from gangline_bus.plan import Plan
from gangline_faults.core.model import (
    Blame,
    Gang,
    Health,
    JobHistory,
    Liveness,
    Node,
    NotedExit,
    OpenIncident,
)
from gangline_faults.core.policy.budget import nan_rollbacks
from gangline_faults.core.policy.distrust import STRAGGLED, with_blame
from gangline_schemas.catalog import Topic
from gangline_schemas.events.faults import (
    CheckpointRequested,
    ExitNoted,
    FailureClass,
    GangFailed,
    GangRunning,
    GangTroubled,
    GangUnwatched,
    GangWatched,
    IncidentClosed,
    JobFlagged,
    JobProgressed,
    NodeDistrusted,
    NodeFailed,
    NodeLeft,
    NodeRecovered,
    NodeSuspected,
    NodeWatched,
    WorkerStraggling,
)
from gangline_schemas.events.workers import DataBlockDamaged
from gangline_schemas.memory import forget_old, keep_newest

PAST_INCARNATIONS = 32
LEFT_NODES = 1000
EARLY_EXITS = 8
FLAGS_OF_A_JOB = 64
FLAGGED_JOBS = 1000


@dataclass(slots=True)
class FaultState:
    """Values are frozen, so that a plan branches the dicts alone.

    - `early`: failed exits of attempts that this service does not know yet.
    - `histories`: of jobs that failed or committed. `incidents`: of jobs that have not recovered.
    - `blames`: the newest failures of each node. `distrusted`: when a node was last distrusted.
    - `save_requested`: when each job was last asked to save because of a sign.
    - `flags`: the blocks of data that each of the newest flagged jobs leaves out.
    - `gone`: nodes that failed or left, and when, oldest first; forgotten by the rule of
      gangline_schemas.memory.
    - `ended`: finished jobs, and when, by the same rule, so that a late duplicate revives none.
    - `placed`: the jobs whose gangs have ranks on each node; derived from `gangs`.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    gangs: dict[str, Gang] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    histories: dict[str, JobHistory] = field(default_factory=dict)
    incidents: dict[str, OpenIncident] = field(default_factory=dict)
    blames: dict[str, tuple[Blame, ...]] = field(default_factory=dict)
    distrusted: dict[str, datetime] = field(default_factory=dict)
    save_requested: dict[str, datetime] = field(default_factory=dict)
    flags: dict[str, tuple[str, ...]] = field(default_factory=dict)
    early: dict[tuple[str, int], tuple[NotedExit, ...]] = field(default_factory=dict)
    settling: dict[str, None] = field(default_factory=dict)
    gone: dict[str, datetime] = field(default_factory=dict)
    ended: dict[str, datetime] = field(default_factory=dict)
    placed: dict[str, frozenset[str]] = field(default_factory=dict)


FaultPlan = Plan[FaultState, Liveness]
fold: Fold[FaultState] = Fold(Topic.FAULTS)
"""How the events of gangline.faults change the state, in place."""


@fold.on(NodeWatched)
def _(state: FaultState, event: NodeWatched, at: datetime) -> None:
    old = state.nodes.get(event.node_id)
    past = () if old is None else (*old.past, old.incarnation)[-PAST_INCARNATIONS:]
    state.nodes[event.node_id] = Node(event.incarnation, past=past)
    state.gone.pop(event.node_id, None)
    _forget_gone(state, at)


@fold.on(NodeSuspected)
def _(state: FaultState, event: NodeSuspected, _at: datetime) -> None:
    _set_health(state, event.node_id, Health.SUSPECTED)


@fold.on(NodeRecovered)
def _(state: FaultState, event: NodeRecovered, _at: datetime) -> None:
    _set_health(state, event.node_id, Health.HEALTHY)
    state.gone.pop(event.node_id, None)


@fold.on(NodeDistrusted)
def _(state: FaultState, event: NodeDistrusted, _at: datetime) -> None:
    state.distrusted[event.node_id] = event.distrusted_at
    state.blames.pop(event.node_id, None)


def _set_health(state: FaultState, node_id: str, health: Health) -> None:
    state.nodes[node_id] = replace(state.nodes[node_id], health=health)


def _forget_gone(state: FaultState, at: datetime) -> None:
    """Nodes that failed or left long ago; one that comes back after that joins again."""
    for node_id, _ in forget_old(state.gone, lambda gone_at: gone_at, at):
        _forget_node(state, node_id)


def _forget_node(state: FaultState, node_id: str) -> None:
    state.nodes.pop(node_id, None)
    state.gone.pop(node_id, None)
    state.blames.pop(node_id, None)
    state.distrusted.pop(node_id, None)


@fold.on(NodeFailed)
def _(state: FaultState, event: NodeFailed, at: datetime) -> None:
    if _gone(state, event.node_id, at):
        _set_health(state, event.node_id, Health.FAILED)


@fold.on(NodeLeft)
def _(state: FaultState, event: NodeLeft, at: datetime) -> None:
    """Of nodes that left the newest are remembered: machines of a cloud may have new names."""
    if not _gone(state, event.node_id, at):
        return
    node = state.nodes.pop(event.node_id)
    state.nodes[event.node_id] = replace(node, health=Health.LEFT)  # to the end: it left last
    left = [node_id for node_id, node in state.nodes.items() if node.health is Health.LEFT]
    for node_id in left[:-LEFT_NODES]:
        _forget_node(state, node_id)


def _gone(state: FaultState, node_id: str, at: datetime) -> bool:
    """Note that a node is gone; False if it is forgotten: then it gets its answer again."""
    if node_id not in state.nodes:
        return False
    state.gone.pop(node_id, None)
    state.gone[node_id] = at
    _forget_gone(state, at)
    return True


def place(state: FaultState, job_id: str) -> None:
    """Note on which nodes a job's gang is."""
    for node_id in set(state.gangs[job_id].nodes):
        state.placed[node_id] = state.placed.get(node_id, frozenset()) | {job_id}


def _displace(state: FaultState, job_id: str) -> None:
    gang = state.gangs.get(job_id)
    for node_id in set(gang.nodes) if gang is not None else ():
        others = state.placed[node_id] - {job_id}
        if others:
            state.placed[node_id] = others
        else:
            del state.placed[node_id]


@fold.on(GangWatched)
def _(state: FaultState, event: GangWatched, _at: datetime) -> None:
    job_id = event.job_id
    _displace(state, job_id)
    state.gangs[job_id] = Gang(
        event.attempt,
        event.nodes,
        event.incarnations,
        event.restart,
        team=event.team,
        world_size=event.world_size,
        resume_step=event.resume_step,
        since=event.allocated_at,
    )
    place(state, job_id)
    state.attempts[job_id] = event.attempt
    state.settling.pop(job_id, None)
    incident = state.incidents.get(job_id)
    if incident is not None:
        state.incidents[job_id] = replace(
            incident,
            next_attempt=event.attempt,
            allocated_at=event.allocated_at,
            resume_step=event.resume_step,
            running_at=None,
        )
    for key in [key for key in state.early if key[0] == job_id and key[1] <= event.attempt]:
        del state.early[key]


@fold.on(GangUnwatched)
def _(state: FaultState, event: GangUnwatched, at: datetime) -> None:
    state.early.pop((event.job_id, event.attempt), None)
    gang = state.gangs.get(event.job_id)
    if gang is not None and gang.attempt == event.attempt:
        _displace(state, event.job_id)
        del state.gangs[event.job_id]
        state.settling.pop(event.job_id, None)
        history = state.histories.get(event.job_id)
        if history is not None and not gang.failed:
            # It stopped in an orderly way: perhaps to resume from an older step, as a user chose.
            state.histories[event.job_id] = replace(history, furthest_step=None, restarts_idle=0)
    if not event.final:
        return
    state.attempts.pop(event.job_id, None)
    state.save_requested.pop(event.job_id, None)
    state.histories.pop(event.job_id, None)
    state.incidents.pop(event.job_id, None)
    for key in [key for key in state.early if key[0] == event.job_id]:
        del state.early[key]
    state.ended.pop(event.job_id, None)
    state.ended[event.job_id] = at
    forget_old(state.ended, lambda ended_at: ended_at, at)


@fold.on(ExitNoted)
def _(state: FaultState, event: ExitNoted, _at: datetime) -> None:
    exited = event.exited
    noted = NotedExit(exited, event.noted_at)
    gang = state.gangs.get(exited.job_id)
    if gang is not None and gang.attempt == exited.attempt:
        state.gangs[exited.job_id] = replace(gang, noted=noted)
        state.settling[exited.job_id] = None
        return
    key = (exited.job_id, exited.attempt)
    state.early[key] = (*state.early.get(key, ()), noted)


@fold.on(GangFailed)
def _(state: FaultState, event: GangFailed, _at: datetime) -> None:
    job_id = event.job_id
    state.gangs[job_id] = replace(state.gangs[job_id], failed=True, noted=None)
    state.settling.pop(job_id, None)
    old = state.histories.get(job_id, JobHistory())
    known = (old.furthest_step, event.last_step, old.committed_step)
    if event.failure_class is FailureClass.NAN:
        old = replace(old, nan_step=old.committed_step, nan_rollbacks=nan_rollbacks(old) + 1)
    state.histories[job_id] = replace(
        old,
        failures=old.failures + 1,
        restarts_used=event.restarts_used,
        restarts_idle=event.restarts_idle,
        data_failures=old.data_failures + (event.failure_class is FailureClass.DATA),
        furthest_step=max((step for step in known if step is not None), default=None),
        advanced=False,
    )
    for node_id in event.blamed_nodes:
        blame = Blame(job_id, event.failure_class, event.failed_at)
        state.blames[node_id] = with_blame(state.blames.get(node_id, ()), blame)
    if event.action == "restart":
        state.incidents[job_id] = OpenIncident(event)


@fold.on(GangRunning)
def _(state: FaultState, event: GangRunning, _at: datetime) -> None:
    incident = state.incidents[event.job_id]
    state.incidents[event.job_id] = replace(incident, running_at=event.running_at)


@fold.on(GangTroubled)
def _(state: FaultState, event: GangTroubled, _at: datetime) -> None:
    gang = state.gangs[event.job_id]
    state.gangs[event.job_id] = replace(gang, troubles=(*gang.troubles, event.key))


@fold.on(CheckpointRequested)
def _(state: FaultState, event: CheckpointRequested, _at: datetime) -> None:
    if event.node_id is None:
        gang = state.gangs[event.job_id]
        state.gangs[event.job_id] = replace(gang, drained=event.requested_at)
    elif event.requested_at is not None:
        state.save_requested[event.job_id] = event.requested_at


@fold.on(WorkerStraggling)
def _(state: FaultState, event: WorkerStraggling, _at: datetime) -> None:
    gang = state.gangs[event.job_id]
    state.gangs[event.job_id] = replace(gang, straggling=(*gang.straggling, event.rank))
    if event.blamed:
        blame = Blame(event.job_id, STRAGGLED, event.noted_at)
        state.blames[event.node_id] = with_blame(state.blames.get(event.node_id, ()), blame)


@fold.on(JobProgressed)
def _(state: FaultState, event: JobProgressed, _at: datetime) -> None:
    old = state.histories.get(event.job_id, JobHistory())
    came_back = event.restarts_used < old.restarts_used
    # Also below the furthest step of a failed attempt: the next one begins further on.
    further = old.committed_step is None or event.step > old.committed_step
    state.histories[event.job_id] = replace(
        old,
        restarts_used=event.restarts_used,
        commits=old.commits + 1 if old.restarts_used and not came_back else 0,
        advanced=old.advanced or old.furthest_step is None or further,
        committed_attempt=event.attempt,
        committed_step=event.step,
        committed_at=event.committed_at,
    )


@fold.on(IncidentClosed)
def _(state: FaultState, event: IncidentClosed, _at: datetime) -> None:
    state.incidents.pop(event.job_id, None)
    gang = state.gangs.get(event.job_id)
    recovered_at = event.first_step_at or event.running_at
    if gang is None or event.outcome != "recovered" or gang.attempt != event.next_attempt:
        return
    state.gangs[event.job_id] = replace(gang, since=recovered_at)


def flag_of(event: DataBlockDamaged | JobFlagged) -> str:
    """The identity of a damaged block."""
    return f"{event.snapshot}/{event.shard}/{event.block}"


@fold.on(JobFlagged)
def _(state: FaultState, event: JobFlagged, _at: datetime) -> None:
    known = state.flags.pop(event.job_id, ())
    state.flags[event.job_id] = (*known, flag_of(event))
    keep_newest(state.flags, FLAGGED_JOBS)
