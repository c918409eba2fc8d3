"""The values that the scheduler decides about: jobs, gangs, nodes. All frozen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from gangline_schemas.events.scheduling import CheckpointRef, NodeAssignment, StopReason
from gangline_schemas.events.workers import GpuInfo, NodeInfo
from gangline_schemas.job import JobSpec, JobState, TeamConfig


class Member(Enum):
    """One rank of the live attempt, as far as the scheduler was told."""

    UNSEEN = "unseen"
    STARTED = "started"
    FINISHED = "finished"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        """Whether its process is gone in an orderly way."""
        return self in {Member.FINISHED, Member.STOPPED}


@dataclass(frozen=True, slots=True)
class Stop:
    """A gang was asked to stop; its agents enforce it at the deadline."""

    reason: StopReason
    deadline: datetime


@dataclass(frozen=True, slots=True)
class Gang:
    """The GPUs and ranks of a job's live attempt. `members` is by rank."""

    attempt: int
    nodes: tuple[NodeAssignment, ...]
    allocated_at: datetime
    members: tuple[Member, ...]
    stop: Stop | None = None

    @property
    def world_size(self) -> int:
        """Ranks, which is GPUs."""
        return len(self.members)

    @property
    def unseen(self) -> bool:
        """Whether no rank was ever seen."""
        return all(member is Member.UNSEEN for member in self.members)


@dataclass(frozen=True, slots=True)
class Avoid:
    """A node that the next attempt shall rather not (`required`: not) run on.

    `admission` is the node's count at that time: one that was admitted anew since is only avoided
    if possible.
    """

    node_id: str
    admission: int
    required: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """The last reason that was given for a pending job, and when."""

    code: str
    message: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Job:
    """An admitted job that has not ended.

    `checkpoints` are its committed ones that can be resumed from, oldest first; `base` is the
    other run's checkpoint that it began with. Checkpoints of attempts before `commits_from` do
    not count: a user restored an older one. `ran_s` is GPU-holding time of ended attempts.
    `restarting`: its last attempt gave its GPUs back to start again, so it is first in the queue.
    """

    job_id: str
    spec: JobSpec
    user: str
    submitted_at: datetime
    priority: int
    state: JobState
    waiting_since: datetime
    attempt: int = 0
    gang: Gang | None = None
    checkpoints: tuple[CheckpointRef, ...] = ()
    base: CheckpointRef | None = None
    restored: bool = False
    commits_from: int = 1
    avoid: tuple[Avoid, ...] = ()
    waiting: Waiting | None = None
    ran_s: float = 0.0
    restarting: bool = False

    @property
    def team(self) -> str:
        """The team that pays."""
        return self.spec.team

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang."""
        return self.spec.resources.gpus

    @property
    def newest(self) -> CheckpointRef | None:
        """The newest checkpoint of this job that can be resumed from, else its base."""
        return self.checkpoints[-1] if self.checkpoints else self.base

    @property
    def resume(self) -> CheckpointRef | None:
        """Where the next attempt starts; None: from the beginning."""
        if self.spec.checkpoint.resume == "never" and not self.restored:
            return self.base
        return self.newest


@dataclass(frozen=True, slots=True)
class EndedRun:
    """What is remembered of an ended job: whose it was, and its newest checkpoints."""

    team: str
    checkpoints: tuple[CheckpointRef, ...]


@dataclass(frozen=True, slots=True)
class Team:
    """A team's limits. `excused`: GPUs it held above its ceiling when that was lowered."""

    config: TeamConfig
    excused: int = 0


@dataclass(frozen=True, slots=True)
class Hold:
    """What one gang holds on a node."""

    gpus: tuple[int, ...]
    cpus: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Node:
    """A node that joined. `down` says why it takes no gangs.

    `admission` counts how often it was admitted, `led` the rendezvous that it was given.
    `holds` is by job, over all incarnations: GPUs are busy until their gang is released.
    """

    info: NodeInfo
    admission: int = 1
    down: str | None = None
    drained: bool = False
    led: int = 0
    past: tuple[str, ...] = ()
    holds: tuple[tuple[str, Hold], ...] = ()

    @property
    def schedulable(self) -> bool:
        """Whether gangs may be placed here."""
        return self.down is None and not self.drained


@dataclass(frozen=True, slots=True)
class FreeNode:
    """What a schedulable node can still give: GPUs in order of their index, CPUs, memory."""

    node_id: str
    block: str
    rack: str
    gpus: tuple[GpuInfo, ...]
    cpus: float
    memory_gb: float


def free_of(node: Node, *, when_empty: bool = False) -> FreeNode:
    """What is free on a node now, or would be if all its gangs were gone."""
    holds = () if when_empty else node.holds
    taken = {index for _, hold in holds for index in hold.gpus}
    return FreeNode(
        node_id=node.info.node_id,
        block=node.info.block,
        rack=node.info.rack,
        gpus=tuple(
            sorted(
                (gpu for gpu in node.info.gpus if gpu.index not in taken),
                key=lambda gpu: gpu.index,
            )
        ),
        cpus=node.info.cpus - sum(hold.cpus for _, hold in holds),
        memory_gb=node.info.memory_gb - sum(hold.memory_gb for _, hold in holds),
    )
