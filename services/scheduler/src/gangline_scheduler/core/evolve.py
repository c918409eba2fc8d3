"""The fold: the scheduler's state after each event of its own log.

A number that goes back (an attempt, a rank out of range) means that the log is broken: LogBroken
ends the process. Cost per event: one job and the nodes of its gang.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import takewhile

from gangline_bus.decision import Fold
from gangline_scheduler.core import usage
from gangline_scheduler.core.ended_runs import EndedRun
from gangline_scheduler.core.indexes import put_node, reindex
from gangline_scheduler.core.model import (
    Avoid,
    Foretold,
    Gang,
    Held,
    Hold,
    Job,
    Member,
    Node,
    Part,
    Runtime,
    Saved,
    Stop,
    Team,
    Wait,
    Waiting,
)
from gangline_scheduler.core.state import LEFT_NODES_KEPT, LOST_NODES_KEPT, State
from gangline_scheduler.core.values import replace
from gangline_schemas.catalog import Topic
from gangline_schemas.events.policy import PolicyConfigured
from gangline_schemas.events.scheduling import (
    CheckpointIntervalChanged,
    CheckpointRef,
    FeatureEnabled,
    GangAllocated,
    GangMemberChanged,
    GangReleased,
    GangSaved,
    GangStopping,
    GpusReserved,
    GpusUnreserved,
    JobQueued,
    JobReprioritized,
    JobStateChanged,
    JobWaiting,
    NodeAdmitted,
    NodeAssignment,
    NodeCordoned,
    NodeUncordoned,
    PartNoted,
    ReleaseReason,
    ResumePointChanged,
    StopReason,
    TeamBudgetNoted,
    TeamNoted,
)
from gangline_schemas.job import JobState
from gangline_schemas.memory import REMEMBERED, forget_old

CHECKPOINTS_KEPT = 64
EVERY_KTH_KEPT = 1000
ENDED_CHECKPOINTS_KEPT = 8
PAST_INCARNATIONS_KEPT = 16
RUNTIMES_KEPT = 64
WAITS_KEPT = 200
MOVES_KEPT = timedelta(hours=1)
_MOVED = frozenset({StopReason.RESIZE, StopReason.DEFRAGMENT})
"""A gang that was stopped for these goes on at once, before all who wait."""


class LogBrokenError(Exception):
    """An event of the own log contradicts the ones before it."""


fold: Fold[State] = Fold(Topic.SCHEDULING)
"""How the events of gangline.scheduling change the state, in place."""


@fold.on(JobQueued)
def _(state: State, event: JobQueued, at: datetime) -> None:
    job = Job(
        job_id=event.job_id,
        spec=event.spec,
        user=event.user,
        submitted_at=event.submitted_at,
        priority=event.spec.priority,
        state=JobState.PENDING,
        waiting_since=at,
    )
    state.jobs[event.job_id] = job
    _wait(state, job)


@fold.on(JobWaiting)
def _(state: State, event: JobWaiting, at: datetime) -> None:
    job = state.jobs[event.job_id]
    waiting, foretold = Waiting(event.code, event.message, at), job.foretold
    if event.eta is not None and foretold is None:
        foretold = Foretold(event.eta, at)
        if job.waiting is not None and job.waiting.message == event.message:
            waiting = job.waiting
    _put_job(state, replace(job, waiting=waiting, foretold=foretold))


@fold.on(JobReprioritized)
def _(state: State, event: JobReprioritized, _at: datetime) -> None:
    _put_job(state, replace(state.jobs[event.job_id], priority=event.priority))


@fold.on(JobStateChanged)
def _(state: State, event: JobStateChanged, at: datetime) -> None:
    job = state.jobs[event.job_id]
    if event.state is JobState.PENDING:
        if event.previous is JobState.PENDING:
            job = replace(job, state=event.state)
        else:
            job = replace(job, state=event.state, waiting_since=at, waiting=None, foretold=None)
        _put_job(state, job)
        if event.job_id not in state.pending:
            _wait(state, job)
    else:
        job = replace(job, state=event.state)
        _wait_no_more(state, event.job_id)
        state.jobs[event.job_id] = job
    _drop_if_over(state, job, at)


@fold.on(GangAllocated)
def _(state: State, event: GangAllocated, at: datetime) -> None:
    job = state.jobs[event.job_id]
    if event.attempt != job.attempt + 1 or job.gang is not None:
        raise LogBrokenError(f"{event.job_id}: attempt {event.attempt} after {job.attempt}")
    members = (Member.UNSEEN,) * event.world_size
    gang = Gang(event.attempt, event.nodes, at, members, models=_models(state, event.nodes))
    job = _came_true(state, job, at)
    job = replace(job, attempt=event.attempt, gang=gang, avoid=(), restarting=False, resize_to=None)
    _put_job(state, job)
    state.live[event.job_id] = None
    usage.take(state, job, gang, at)
    need = event.spec.resources
    for part in event.nodes:
        hold = Hold.of(part.gpus, need, event.team)
        node = state.nodes[part.node_id]
        led = node.led + (1 if part.first_rank == 0 else 0)
        put_node(state, replace(node, holds=(*node.holds, (event.job_id, hold)), led=led))


@fold.on(GpusReserved)
def _(state: State, event: GpusReserved, _at: datetime) -> None:
    nodes = tuple((share.node_id, share.gpus) for share in event.nodes)
    _hold_no_more(state, event.job_id)
    state.held[event.job_id] = Held(nodes, event.until, event.reason, event.victims)


@fold.on(GpusUnreserved)
def _(state: State, event: GpusUnreserved, _at: datetime) -> None:
    held = _hold_no_more(state, event.job_id)
    if held is None or event.job_id in state.live:
        return
    for job_id in held.victims:  # nobody waits for what they were to give back
        job = state.jobs.get(job_id)
        if job is not None and job.resize_to is not None:
            _put_job(state, replace(job, resize_to=None))


@fold.on(GangStopping)
def _(state: State, event: GangStopping, at: datetime) -> None:
    job, gang = _live(state, event.job_id, event.attempt)
    stop = Stop(event.reason, event.deadline, event.verdict)
    resized_at = at if event.reason is StopReason.RESIZE else job.resized_at
    gang = replace(gang, stop=stop)
    _put_job(state, replace(job, resized_at=resized_at, resize_to=event.resize_to, gang=gang))
    if event.reason is StopReason.DEFRAGMENT:
        recent = tuple(then for then in state.moved if at - then < MOVES_KEPT)
        state.moved = (*recent, at)


@fold.on(GangSaved)
def _(state: State, event: GangSaved, at: datetime) -> None:
    job, gang = _live(state, event.job_id, event.attempt)
    _put_job(state, replace(job, gang=replace(gang, saved=Saved(event.step, at))))


@fold.on(GangMemberChanged)
def _(state: State, event: GangMemberChanged, _at: datetime) -> None:
    job, gang = _live(state, event.job_id, event.attempt)
    members = list(gang.members)
    members[event.rank] = Member(event.status)
    _put_job(state, replace(job, gang=replace(gang, members=tuple(members))))


@fold.on(GangReleased)
def _(state: State, event: GangReleased, at: datetime) -> None:
    job, gang = _live(state, event.job_id, event.attempt)
    for part in gang.nodes:
        node = state.nodes[part.node_id]
        holds = tuple(item for item in node.holds if item[0] != event.job_id)
        put_node(state, replace(node, holds=holds))
    del state.live[event.job_id]
    usage.give_back(state, job, gang, at)
    part_of = {part.node_id: part.incarnation for part in gang.nodes}
    avoid = tuple(
        Avoid(node_id, known.admission, event.avoid_required)
        for node_id in event.avoid_nodes
        if (known := state.nodes.get(node_id)) is not None
        and part_of.get(node_id, known.info.incarnation) == known.info.incarnation
    )
    ran_s = job.ran_s + (at - gang.allocated_at).total_seconds()
    stopped = gang.stop.reason if gang.stop is not None else None
    moved = event.reason is ReleaseReason.PREEMPTED and stopped in _MOVED
    restarting = event.reason is ReleaseReason.RESTARTING or moved
    preempted = stopped is StopReason.PREEMPTED
    job = replace(
        job,
        gang=None,
        avoid=avoid,
        ran_s=ran_s,
        restarting=restarting,
        preemptions=job.preemptions + int(preempted),
        left_out=event.left_out or job.left_out,
    )
    _put_job(state, job)
    if event.reason is ReleaseReason.SUCCEEDED:
        _remember_runtime(state, job)
    _drop_if_over(state, job, at)


@fold.on(ResumePointChanged)
def _(state: State, event: ResumePointChanged, at: datetime) -> None:
    job = state.jobs.get(event.job_id)
    if job is None:
        _change_ended(state, event)
        return
    gone, point = event.forgotten, event.checkpoint
    kept = job.checkpoints
    if gone is not None:
        kept = tuple(known for known in kept if known != gone)
    base = None if job.base == gone else job.base
    if point is not None and point.job_id != job.job_id:
        base = point
    elif point is not None and not _leads_further(point, kept) and point in kept:
        kept = kept[: kept.index(point) + 1]
    elif point is not None:
        keep = job.spec.checkpoint.keep
        most = max(CHECKPOINTS_KEPT, keep.latest) if keep.every is None else EVERY_KTH_KEPT
        kept = (*kept, point)[-most:]
    saved = point is not None and point.job_id == job.job_id and not event.restored
    _put_job(
        state,
        replace(
            job,
            checkpoints=kept,
            base=base,
            saved_at=at if saved else job.saved_at,
            restored=event.restored or job.restored,
            commits_from=job.attempt + 1 if event.restored else job.commits_from,
        ),
    )


@fold.on(CheckpointIntervalChanged)
def _(state: State, event: CheckpointIntervalChanged, _at: datetime) -> None:
    job = state.jobs.get(event.job_id)
    if job is not None:
        _put_job(state, replace(job, checkpoint_interval_s=event.interval_s))


@fold.on(TeamNoted)
def _(state: State, event: TeamNoted, at: datetime) -> None:
    name, known = event.config.team, state.teams.get(event.config.team)
    state.teams[name] = Team(event.config)
    if known is None or known.config.parent != event.config.parent:
        # It took its gangs along: those above it may hold more than they may now.
        usage.move(state, at)
        changed = [*state.teams]
    else:
        changed = [name]
    for each in changed:
        config, used = state.teams[each].config, state.used.get(each, 0)
        state.teams[each] = Team(config, used if used > config.ceiling else 0)


@fold.on(TeamBudgetNoted)
def _(state: State, event: TeamBudgetNoted, _at: datetime) -> None:
    if event.exhausted:
        state.broke[event.team] = event.month
    else:
        state.broke.pop(event.team, None)


@fold.on(NodeAdmitted)
def _(state: State, event: NodeAdmitted, at: datetime) -> None:
    info = event.node
    state.lost.pop(info.node_id, None)
    state.left.pop(info.node_id, None)
    known = state.nodes.get(info.node_id)
    _forget_gone(state, at)
    if known is None:
        put_node(state, Node(info))
        return
    past = known.past
    if known.info.incarnation != info.incarnation:
        past = (*past, known.info.incarnation)[-PAST_INCARNATIONS_KEPT:]
    put_node(
        state,
        replace(
            known,
            info=info,
            admission=known.admission + 1,
            down=None,
            down_at=None,
            drained=False,
            moving_since=None,
            outdated=None,
            past=past,
        ),
    )


@fold.on(NodeCordoned)
def _(state: State, event: NodeCordoned, at: datetime) -> None:
    node = state.nodes.get(event.node_id)
    if node is None or node.info.incarnation != event.incarnation:
        state.lost[event.node_id] = event.incarnation
        if len(state.lost) > LOST_NODES_KEPT:
            del state.lost[next(iter(state.lost))]
    elif event.reason == "drain":
        moving_since = at if event.move_jobs else None
        put_node(state, replace(node, drained=True, moving_since=moving_since))
    elif event.reason == "outdated":
        put_node(state, replace(node, outdated=event.oldest_accepted))
    else:
        state.left.pop(event.node_id, None)
        put_node(state, replace(node, down=event.reason, down_at=at))
        if event.reason == "leaving":
            _forget_left(state, event.node_id)
    _forget_gone(state, at)


@fold.on(NodeUncordoned)
def _(state: State, event: NodeUncordoned, _at: datetime) -> None:
    node = state.nodes.get(event.node_id)
    if node is None or node.info.incarnation != event.incarnation:
        state.lost.pop(event.node_id, None)
    else:
        admission = node.admission + 1
        put_node(state, replace(node, drained=False, moving_since=None, admission=admission))


def _live(state: State, job_id: str, attempt: int) -> tuple[Job, Gang]:
    job = state.jobs[job_id]
    if job.gang is None or job.gang.attempt != attempt:
        raise LogBrokenError(f"{job_id}: attempt {attempt} is not the live one")
    return job, job.gang


def _forget_left(state: State, node_id: str) -> None:
    """This node leaves; of those that did, the first beyond the newest goes, if it is empty."""
    state.left.pop(node_id, None)
    state.left[node_id] = None
    if len(state.left) <= LEFT_NODES_KEPT:
        return
    for first in state.left:
        if not state.nodes[first].holds:
            del state.left[first], state.nodes[first]
            return


def _forget_gone(state: State, at: datetime) -> None:
    """Forget nodes that failed or left long ago, unless a gang still counts there.

    One that comes back after that joins again.
    """
    old = takewhile(lambda entry: at - entry[1] > REMEMBERED, state.failed.items())
    for node_id in [node_id for node_id, _ in old if not state.nodes[node_id].holds]:
        del state.failed[node_id]
        del state.nodes[node_id]
    while state.left:
        first = next(iter(state.left))
        since = state.nodes[first].down_at
        if since is None or at - since <= REMEMBERED or state.nodes[first].holds:
            break
        del state.left[first]
        del state.nodes[first]


def _hold_no_more(state: State, job_id: str) -> Held | None:
    """Others may have the GPUs that were held for this job."""
    held = state.held.pop(job_id, None)
    if held is not None:
        state.unreservable.forget()
        for node_id, _ in held.nodes:
            state.free.searches.grew(node_id)
    return held


def _put_job(state: State, job: Job) -> None:
    if job.job_id in state.pending:
        state.queue.replace(state.jobs[job.job_id], job)
    state.jobs[job.job_id] = job


def _wait(state: State, job: Job) -> None:
    state.pending[job.job_id] = None
    state.queue.add(job)
    if job.restarting:
        state.restarting[job.job_id] = None


def _wait_no_more(state: State, job_id: str) -> None:
    if job_id in state.pending:
        del state.pending[job_id]
        state.queue.remove(state.jobs[job_id])
        state.restarting.pop(job_id, None)


def _came_true(state: State, job: Job, at: datetime) -> Job:
    """Remember how the estimate of its start came, and forget it."""
    said = job.foretold
    if said is None:
        return job
    wait = Wait((said.start - said.at).total_seconds(), (at - said.at).total_seconds())
    state.waits = (*state.waits, wait)[-WAITS_KEPT:]
    return replace(job, foretold=None)


def _remember_runtime(state: State, job: Job) -> None:
    expected = job.spec.expected_runtime_hours
    ran = Runtime(job.ran_s, None if expected is None else expected * 3600)
    state.runtimes[job.team] = (*state.runtimes.get(job.team, ()), ran)[-RUNTIMES_KEPT:]


def _models(state: State, parts: tuple[NodeAssignment, ...]) -> tuple[tuple[str, int], ...]:
    """How many GPUs of which model the parts are."""
    found: dict[str, int] = {}
    for part in parts:
        models = dict(state.nodes[part.node_id].gpu_models)
        for index in part.gpus:
            found[models[index]] = found.get(models[index], 0) + 1
    return tuple(sorted(found.items()))


def _leads_further(point: CheckpointRef, kept: tuple[CheckpointRef, ...]) -> bool:
    """Whether it is a new one; those that are kept stand in the order of their steps."""
    return not kept or point.step > kept[-1].step


def _change_ended(state: State, event: ResumePointChanged) -> None:
    """Others may begin from an ended run; of what a trial copy does not hold, nothing is kept."""
    run = state.ended.get(event.job_id)
    if run is None:
        return
    points = tuple(point for point in run.checkpoints if point != event.forgotten)
    if event.checkpoint is not None:
        points = (*points, event.checkpoint)[-ENDED_CHECKPOINTS_KEPT:]
    state.ended[event.job_id] = EndedRun.of(run.team, run.ended_at, points)


def _drop_if_over(state: State, job: Job, at: datetime) -> None:
    """A job leaves the working set when it has ended and its gang is released, in any order."""
    if not job.state.terminal or job.gang is not None:
        return
    del state.jobs[job.job_id]
    state.ended[job.job_id] = EndedRun.of(job.team, at, job.checkpoints[-ENDED_CHECKPOINTS_KEPT:])
    forget_old(state.ended, lambda run: run.ended_at, at)


@fold.on(PartNoted)
def _(state: State, event: PartNoted, at: datetime) -> None:
    key = (event.part, event.instance)
    if event.release is None:
        state.parts.pop(key, None)
    else:
        state.parts[key] = Part(event.release, at)


@fold.on(FeatureEnabled)
def _(state: State, event: FeatureEnabled, at: datetime) -> None:
    state.features[event.feature] = at


@fold.on(PolicyConfigured)
def _(state: State, event: PolicyConfigured, _at: datetime) -> None:
    state.policy = event
    reindex(state)
