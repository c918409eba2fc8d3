"""The platform as the scheduler knew it at a time: jobs, queue, nodes."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from gangline import render
from gangline.output import Output
from gangline.render import NONE, Column
from gangline.replay.log import fold_until, nothing_decided
from gangline_bus.fold import Folded
from gangline_bus.ports import Bus
from gangline_bus.topics import TopicNames
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.listing import starting_order
from gangline_scheduler.core.model import Job, Node
from gangline_scheduler.core.policy.configured import policy_in
from gangline_scheduler.core.state import State

_RUNNING = (
    Column("JOB", whole=True),
    Column("TEAM", flexible=True),
    Column("STATE"),
    Column("ATTEMPT", right=True),
    Column("GPUS", right=True),
    Column("ALLOCATED", right=True),
    Column("WHERE", flexible=True),
)
_QUEUE = (
    Column("#", right=True),
    Column("JOB", whole=True),
    Column("TEAM", flexible=True),
    Column("GPUS", right=True),
    Column("PRIO", right=True),
    Column("WAITED", right=True),
    Column("WHY", flexible=True),
)
_NODES = (
    Column("NODE", whole=True),
    Column("STATUS"),
    Column("GPUS"),
    Column("RACK", flexible=True),
    Column("JOBS", flexible=True),
)


class NodeGpus(BaseModel):
    """A gang's GPUs on one node."""

    node_id: str
    gpus: tuple[int, ...]


class JobAtTime(BaseModel):
    """An active job as it was. `position` is its place in the queue, None with a gang."""

    job_id: str
    team: str
    state: str
    priority: int
    gpus: int
    attempt: int
    submitted_at: datetime
    waiting_since: datetime
    position: int | None = None
    reason: str | None = None
    message: str | None = None
    allocated_at: datetime | None = None
    allocation: tuple[NodeGpus, ...] = ()


class NodeAtTime(BaseModel):
    """A node as it was."""

    node_id: str
    status: str
    rack: str
    gpus: int
    gpus_used: int
    jobs: tuple[str, ...]


class ClusterAtTime(BaseModel):
    """The platform at a time, after so many events of the scheduler's log."""

    at: datetime
    events: int
    jobs: tuple[JobAtTime, ...]
    nodes: tuple[NodeAtTime, ...]


def cluster_at(bus: Bus, names: TopicNames, at: datetime, shard: int = 0) -> ClusterAtTime:
    """Fold the scheduler's log up to a time. Raises CliError, BusError."""
    folded = fold_until(bus, names, Scheduler(), at, shard)
    if not folded.next_seq:
        raise nothing_decided(at)
    return cluster_of(folded, at)


def cluster_of(folded: Folded[State], at: datetime) -> ClusterAtTime:
    """A state as text: jobs with GPUs by id, then the queue in its order; nodes by id."""
    state = folded.state
    queue = [job.job_id for job in starting_order(state, at, policy_in(state))]
    place = {job_id: number for number, job_id in enumerate(queue, 1)}
    running = sorted(job_id for job_id in state.jobs if job_id not in place)
    return ClusterAtTime(
        at=at,
        events=folded.next_seq,
        jobs=tuple(_job(state.jobs[job_id], place.get(job_id)) for job_id in [*running, *queue]),
        nodes=tuple(_node(node) for _, node in sorted(state.nodes.items())),
    )


def show(out: Output, past: ClusterAtTime) -> None:
    """One document, or the three tables."""
    if out.json:
        out.show(past, "")
        return
    used, gpus = sum(n.gpus_used for n in past.nodes), sum(n.gpus for n in past.nodes)
    with_gpus = [job for job in past.jobs if job.position is None]
    queue = [job for job in past.jobs if job.position is not None]
    print(
        f"{past.at:%Y-%m-%d %H:%M:%S} UTC, after {past.events:,} events\n"
        f"{used} of {gpus} GPUs allocated, {len(with_gpus)} jobs with GPUs, {len(queue)} waiting"
    )
    for title, columns, rows in (
        ("jobs", _RUNNING, [_running_row(job, past.at) for job in with_gpus]),
        ("queue", _QUEUE, [_queue_row(job, past.at) for job in queue]),
        ("nodes", _NODES, [_node_row(node) for node in past.nodes]),
    ):
        print(f"\n{title}: {'' if rows else 'none'}".rstrip())
        if rows:
            print(render.table(columns, rows))


def _job(job: Job, position: int | None) -> JobAtTime:
    gang, waiting = job.gang, job.waiting if position is not None else None
    return JobAtTime(
        job_id=job.job_id,
        team=job.team,
        state=job.state.value,
        priority=job.priority,
        gpus=job.gpus if gang is None else gang.world_size,
        attempt=job.attempt,
        submitted_at=job.submitted_at,
        waiting_since=job.waiting_since,
        position=position,
        reason=None if waiting is None else waiting.code,
        message=None if waiting is None else waiting.message,
        allocated_at=None if gang is None else gang.allocated_at,
        allocation=tuple(
            NodeGpus(node_id=part.node_id, gpus=part.gpus)
            for part in (() if gang is None else gang.nodes)
        ),
    )


def _node(node: Node) -> NodeAtTime:
    kept_off = "drained" if node.drained else "outdated" if node.outdated else None
    status = node.down or kept_off or "ready"
    return NodeAtTime(
        node_id=node.info.node_id,
        status=status,
        rack=node.info.rack,
        gpus=len(node.info.gpus),
        gpus_used=sum(len(part.gpus) for _, part in node.allocations),
        jobs=tuple(job_id for job_id, _ in node.allocations),
    )


def _running_row(job: JobAtTime, at: datetime) -> list[str]:
    where = ", ".join(f"{part.node_id}:{','.join(map(str, part.gpus))}" for part in job.allocation)
    return [
        job.job_id,
        job.team,
        job.state,
        str(job.attempt),
        str(job.gpus),
        render.short_age(job.allocated_at, at),
        where or NONE,
    ]


def _queue_row(job: JobAtTime, at: datetime) -> list[str]:
    return [
        str(job.position),
        job.job_id,
        job.team,
        str(job.gpus),
        str(job.priority),
        render.short_age(job.waiting_since, at),
        job.message or NONE,
    ]


def _node_row(node: NodeAtTime) -> list[str]:
    return [
        node.node_id,
        node.status,
        f"{node.gpus_used} of {node.gpus}",
        node.rack,
        ", ".join(node.jobs) or NONE,
    ]
