"""The platform as the scheduler knew it at a time: jobs, queue, nodes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

from pydantic import BaseModel

from gangline import render
from gangline.output import Output
from gangline.render import NONE, Column
from gangline.replay.log import fold_until, nothing_decided
from gangline_bus.fold import Folded
from gangline_bus.ports import Bus
from gangline_bus.topics import TopicNames
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.listing import listed
from gangline_scheduler.core.model import Job, Node
from gangline_scheduler.core.policy.configured import policy_in
from gangline_scheduler.core.state import State

ItemT = TypeVar("ItemT")


class GpusOnNode(BaseModel):
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
    allocation: tuple[GpusOnNode, ...] = ()


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
    """A state as text: jobs by id, then the queue in its order; nodes by id."""
    state = folded.state
    queue = [place.job.job_id for place in listed(state, at, policy_in(state))]
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
    running = [job for job in past.jobs if job.position is None]
    queue = [job for job in past.jobs if job.position is not None]
    print(
        f"{past.at:%Y-%m-%d %H:%M:%S} UTC, after {past.events:,} events\n"
        f"{used} of {gpus} GPUs allocated, {len(running)} jobs run, {len(queue)} waiting"
    )
    _print("jobs", running, _running(past.at))
    _print("queue", queue, _waiting(past.at))
    _print("nodes", past.nodes, _NODES)


def _print(title: str, items: Sequence[ItemT], columns: Sequence[Column[ItemT]]) -> None:
    print(f"\n{title}: {'' if items else 'none'}".rstrip())
    if items:
        print(render.listing(columns, items))


def _job(job: Job, position: int | None) -> JobAtTime:
    gang, waiting = job.gang, job.waiting if position is not None else None
    return JobAtTime(
        job_id=job.job_id,
        team=job.team,
        state=job.state.value,
        priority=job.priority,
        gpus=job.gpus if gang is None else job.allocated_gpus,
        attempt=job.attempt,
        submitted_at=job.submitted_at,
        waiting_since=job.waiting_since,
        position=position,
        reason=None if waiting is None else waiting.code,
        message=None if waiting is None else waiting.message,
        allocated_at=None if gang is None else gang.allocated_at,
        allocation=tuple(
            GpusOnNode(node_id=part.node_id, gpus=part.gpus)
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
        jobs=node.jobs,
    )


def _running(at: datetime) -> tuple[Column[JobAtTime], ...]:
    return (
        Column("JOB", lambda job: job.job_id, whole=True),
        Column("TEAM", lambda job: job.team, flexible=True),
        Column("STATE", lambda job: job.state),
        Column("ATTEMPT", lambda job: str(job.attempt), right=True),
        Column("GPUS", lambda job: str(job.gpus), right=True),
        Column("ALLOCATED", lambda job: render.short_age(job.allocated_at, at), right=True),
        Column("WHERE", _where, flexible=True),
    )


def _where(job: JobAtTime) -> str:
    parts = (
        f"{part.node_id}:{','.join(map(str, part.gpus))}" if part.gpus else part.node_id
        for part in job.allocation
    )
    return ", ".join(parts) or NONE


def _waiting(at: datetime) -> tuple[Column[JobAtTime], ...]:
    return (
        Column("#", lambda job: str(job.position), right=True),
        Column("JOB", lambda job: job.job_id, whole=True),
        Column("TEAM", lambda job: job.team, flexible=True),
        Column("GPUS", lambda job: str(job.gpus), right=True),
        Column("PRIO", lambda job: str(job.priority), right=True),
        Column("WAITED", lambda job: render.short_age(job.waiting_since, at), right=True),
        Column("WHY", lambda job: job.message or NONE, flexible=True),
    )


_NODES: tuple[Column[NodeAtTime], ...] = (
    Column("NODE", lambda node: node.node_id, whole=True),
    Column("STATUS", lambda node: node.status),
    Column("GPUS", lambda node: f"{node.gpus_used} of {node.gpus}"),
    Column("RACK", lambda node: node.rack, flexible=True),
    Column("JOBS", lambda node: ", ".join(node.jobs) or NONE, flexible=True),
)
