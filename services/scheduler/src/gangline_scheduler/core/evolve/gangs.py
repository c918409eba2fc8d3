"""Gangs: GPUs that are allocated, reserved and released; stops, and the ranks' states."""

from __future__ import annotations

from datetime import datetime, timedelta

from gangline_scheduler.core import usage
from gangline_scheduler.core.evolve.jobs import drop_if_over, put_job
from gangline_scheduler.core.evolve.registry import fold
from gangline_scheduler.core.indexes import put_node
from gangline_scheduler.core.model import (
    Avoid,
    Gang,
    Job,
    Member,
    NodeAllocation,
    ReservedGpus,
    Saved,
    Stop,
    Wait,
)
from gangline_scheduler.core.state import State
from gangline_scheduler.core.team_model import Runtime
from gangline_scheduler.core.values import replace
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangMemberChanged,
    GangReleased,
    GangSaved,
    GangStopping,
    GpusReserved,
    GpusUnreserved,
    NodeAssignment,
    ReleaseReason,
    StopReason,
)

RUNTIMES_KEPT = 64
WAITS_KEPT = 200
MOVES_KEPT = timedelta(hours=1)
_MOVED = frozenset({StopReason.RESIZE, StopReason.DEFRAGMENT})
"""A gang that was stopped for these continues at once, before all waiting jobs."""


class LogBrokenError(Exception):
    """An event of the own log contradicts the ones before it."""


@fold.on(GangAllocated)
def _(state: State, event: GangAllocated, at: datetime) -> None:
    job = state.jobs[event.job_id]
    if event.attempt != job.attempt + 1 or job.gang is not None:
        raise LogBrokenError(f"{event.job_id}: attempt {event.attempt} after {job.attempt}")
    members = (Member.UNSEEN,) * event.world_size
    models, port = _models(state, event.nodes), event.rendezvous.port
    gang = Gang(event.attempt, event.nodes, at, members, models=models, port=port)
    job = _compare_estimate(state, job, at)
    job = replace(job, attempt=event.attempt, gang=gang, avoid=(), restarting=False, resize_to=None)
    put_job(state, job)
    (state.cpu_live if job.cpu_only else state.live)[event.job_id] = None
    usage.take(state, job, gang, at)
    need = event.spec.resources
    for part in event.nodes:
        allocation = NodeAllocation.of(part.gpus, need, event.team)
        node = state.nodes[part.node_id]
        led = node.led + (1 if part.first_rank == 0 else 0)
        taken = (event.job_id, allocation)
        if job.cpu_only:
            changed = replace(node, cpu_allocations=(*node.cpu_allocations, taken), led=led)
        else:
            changed = replace(node, allocations=(*node.allocations, taken), led=led)
        put_node(state, changed)


@fold.on(GpusReserved)
def _(state: State, event: GpusReserved, _at: datetime) -> None:
    nodes = tuple((share.node_id, share.gpus) for share in event.nodes)
    _unreserve(state, event.job_id)
    state.reserved[event.job_id] = ReservedGpus(nodes, event.until, event.reason, event.victims)


@fold.on(GpusUnreserved)
def _(state: State, event: GpusUnreserved, _at: datetime) -> None:
    reserved = _unreserve(state, event.job_id)
    if reserved is None or event.job_id in state.live:
        return
    for job_id in reserved.victims:  # no job waits for the GPUs that they were to give back
        job = state.jobs.get(job_id)
        if job is not None and job.resize_to is not None:
            put_job(state, replace(job, resize_to=None))


@fold.on(GangStopping)
def _(state: State, event: GangStopping, at: datetime) -> None:
    job, gang = _live(state, event.job_id, event.attempt)
    stop = Stop(event.reason, event.deadline, event.verdict)
    resized_at = at if event.reason is StopReason.RESIZE else job.resized_at
    gang = replace(gang, stop=stop)
    put_job(state, replace(job, resized_at=resized_at, resize_to=event.resize_to, gang=gang))
    if event.reason is StopReason.DEFRAGMENT:
        recent = tuple(then for then in state.moved if at - then < MOVES_KEPT)
        state.moved = (*recent, at)


@fold.on(GangSaved)
def _(state: State, event: GangSaved, at: datetime) -> None:
    job, gang = _live(state, event.job_id, event.attempt)
    put_job(state, replace(job, gang=replace(gang, saved=Saved(event.step, at))))


@fold.on(GangMemberChanged)
def _(state: State, event: GangMemberChanged, _at: datetime) -> None:
    job, gang = _live(state, event.job_id, event.attempt)
    members = list(gang.members)
    members[event.rank] = Member(event.status)
    put_job(state, replace(job, gang=replace(gang, members=tuple(members))))


@fold.on(GangReleased)
def _(state: State, event: GangReleased, at: datetime) -> None:
    job, gang = _live(state, event.job_id, event.attempt)
    for part in gang.nodes:
        node = state.nodes[part.node_id]
        if job.cpu_only:
            left = tuple(item for item in node.cpu_allocations if item[0] != event.job_id)
            put_node(state, replace(node, cpu_allocations=left))
        else:
            left = tuple(item for item in node.allocations if item[0] != event.job_id)
            put_node(state, replace(node, allocations=left))
    del (state.cpu_live if job.cpu_only else state.live)[event.job_id]
    usage.give_back(state, job, gang, at)
    part_of = {part.node_id: part.incarnation for part in gang.nodes}
    avoid = tuple(
        Avoid(node_id, known.admission, event.avoid_required)
        for node_id in event.avoid_nodes
        if (known := state.nodes.get(node_id)) is not None
        and part_of.get(node_id, known.info.incarnation) == known.info.incarnation
    )
    ran_s = job.ran_s + max(0.0, (at - gang.allocated_at).total_seconds())
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
    put_job(state, job)
    if event.reason is ReleaseReason.SUCCEEDED and not job.cpu_only:
        _remember_runtime(state, job)
    drop_if_over(state, job, at)


def _live(state: State, job_id: str, attempt: int) -> tuple[Job, Gang]:
    job = state.jobs[job_id]
    if job.gang is None or job.gang.attempt != attempt:
        raise LogBrokenError(f"{job_id}: attempt {attempt} is not the live one")
    return job, job.gang


def _unreserve(state: State, job_id: str) -> ReservedGpus | None:
    """Others may have the GPUs that were reserved for this job."""
    reserved = state.reserved.pop(job_id, None)
    if reserved is not None:
        state.unreservable.forget()
        for node_id, _ in reserved.nodes:
            state.free.searches.grew(node_id)
    return reserved


def _compare_estimate(state: State, job: Job, at: datetime) -> Job:
    """Keep the estimated and the actual wait; the job itself forgets the estimate."""
    estimate = job.start_estimate
    if estimate is None:
        return job
    wait = Wait((estimate.start - estimate.at).total_seconds(), (at - estimate.at).total_seconds())
    state.waits = (*state.waits, wait)[-WAITS_KEPT:]
    return replace(job, start_estimate=None)


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
