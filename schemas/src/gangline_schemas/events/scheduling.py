"""gangline.scheduling: the state of every job and the allocation of every GPU."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gangline_schemas.base import Event, Identifier, Model, NodeIds, Timestamp
from gangline_schemas.events.workers import LEFT_OUT_RANGES, Incarnation, NodeInfo, SampleRange
from gangline_schemas.job import JobSpec, JobState, WaitCode
from gangline_schemas.limits import (
    ATTEMPT_MAX,
    GPUS_PER_NODE,
    MAX_NODES,
    Amount,
    Attempt,
    GpuIndex,
    IntervalSeconds,
    Label,
    Message,
    Month,
    Name,
    ObjectKey,
    Port,
    Priority,
    Rank,
    Release,
    Step,
    User,
    WorldSize,
)
from gangline_schemas.team_limits import TeamConfig


class CheckpointRef(Model):
    """A committed checkpoint: its job, attempt and step, and the key of its commit record."""

    job_id: Identifier
    attempt: Attempt
    step: Step
    world_size: WorldSize
    commit_key: ObjectKey = Field(description="Key of the commit record in the object store.")


class NodeAssignment(Model):
    """The ranks from `first_rank` on run on this node, one per GPU; without GPUs it is one."""

    node_id: Identifier
    incarnation: Incarnation
    address: Name
    gpus: tuple[GpuIndex, ...] = Field(
        max_length=GPUS_PER_NODE,
        description="GPU indexes on the node; empty: one rank without a GPU.",
    )
    first_rank: Rank
    copies_port: Port | None = Field(
        default=None,
        description="Where its agent gives files of checkpoints to those of the gang.",
    )

    @property
    def ranks(self) -> range:
        """The ranks on this node."""
        return range(self.first_rank, self.first_rank + (len(self.gpus) or 1))


class Rendezvous(Model):
    """Where the ranks find each other: a TCPStore that the agent of rank 0's node opens."""

    address: Name
    port: Port


class ReleaseReason(StrEnum):
    """Why a gang gave its GPUs back."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RESTARTING = "restarting"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"


class StopReason(StrEnum):
    """Why a running gang was asked to stop."""

    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    RESTORE = "restore"
    DRAIN = "drain"
    DEFRAGMENT = "defragment"
    RESIZE = "resize"
    MAX_RUNTIME = "max_runtime"
    FAILED = "failed"


class JobQueued(Event):
    """The job waits for its gang."""

    type: ClassVar[str] = "job.queued"
    job_id: Identifier
    spec: JobSpec
    user: User
    submitted_at: Timestamp
    waits_since: Timestamp | None = Field(
        default=None, description="Of a job in the place of a withdrawn one: its age in the queue."
    )


class JobWaiting(Event):
    """Why a pending job does not start: one dominant reason, its evidence, the next step."""

    type: ClassVar[str] = "job.waiting"
    job_id: Identifier
    code: WaitCode
    message: Message
    eta: Timestamp | None = Field(
        default=None, description="The first start that was estimated in this wait; said once."
    )
    likely_nodes: NodeIds | None = Field(
        default=None, description="With `eta`, of a job with an image: where it would start."
    )


class GangAllocated(Event):
    """The whole gang has its GPUs. `attempt` is the fencing token from here on."""

    type: ClassVar[str] = "gang.allocated"
    job_id: Identifier
    attempt: Attempt
    team: Identifier
    world_size: WorldSize
    nodes: tuple[NodeAssignment, ...] = Field(min_length=1, max_length=MAX_NODES)
    rendezvous: Rendezvous
    resume: CheckpointRef | None = None
    spec: JobSpec
    level: Label | None = Field(
        default=None,
        description="The closest level that contains the whole gang: its worst link crosses it.",
    )
    checkpoint_interval_s: IntervalSeconds | None = Field(
        default=None, description="As was advised; None: as the spec says."
    )
    left_out: tuple[SampleRange, ...] = Field(
        default=(),
        max_length=LEFT_OUT_RANGES,
        description="Samples that it goes without: the loss was not finite there, or leapt up.",
    )


class NodeShare(Model):
    """A number of GPUs of one node, whichever."""

    node_id: Identifier
    gpus: WorldSize


class GpusReserved(Event):
    """GPUs that are being freed are reserved for this job, at most until `until`."""

    type: ClassVar[str] = "gpus.reserved"
    job_id: Identifier
    nodes: tuple[NodeShare, ...] = Field(min_length=1, max_length=MAX_NODES)
    reason: Literal["preempt", "reclaim", "surplus", "defragment", "resize", "drain"]
    victims: tuple[Identifier, ...] = Field(default=(), max_length=MAX_NODES)
    cost_gpu_seconds: Amount = Field(default=0, description="The cost of stopping them.")
    value_gpu_seconds: Amount = Field(default=0, description="The value of starting sooner.")
    until: Timestamp


class GpusUnreserved(Event):
    """The reservation ends: the job started or ended, or the GPUs came too late."""

    type: ClassVar[str] = "gpus.unreserved"
    job_id: Identifier


class Verdict(Model):
    """The consequences of a gang's failure for its next attempt."""

    message: Message = Field(description="Why it failed, for people.")
    avoid_nodes: NodeIds = Field(
        default=(), description="Nodes that the next attempt should avoid."
    )
    left_out: tuple[SampleRange, ...] = Field(
        default=(),
        max_length=LEFT_OUT_RANGES,
        description="Samples that later attempts go without, all of them; empty: no others than "
        "so far.",
    )


class GangStopping(Event):
    """The gang must checkpoint and exit before `deadline`; its agents enforce it.

    One that `failed` has no time: its ranks are killed at once. It keeps its GPUs until its last
    save is committed, at most until the deadline, and starts again from there.
    """

    type: ClassVar[str] = "gang.stopping"
    job_id: Identifier
    attempt: Attempt
    reason: StopReason
    deadline: Timestamp
    resize_to: WorldSize | None = Field(
        default=None,
        description="GPUs that its next attempt takes at most: an elastic gang gives some to a "
        "job that waits.",
    )
    verdict: Verdict | None = Field(default=None, description="Of a gang that failed.")


class GangSaved(Event):
    """All ranks' parts of this checkpoint lie on the gang's nodes, on their way to the store."""

    type: ClassVar[str] = "gang.saved"
    job_id: Identifier
    attempt: Attempt
    step: Step


class GangReleased(Event):
    """The gang's GPUs are free again. Agents kill what is left of this attempt."""

    type: ClassVar[str] = "gang.released"
    job_id: Identifier
    attempt: Attempt
    reason: ReleaseReason
    allocated_at: Timestamp
    gpu_seconds: Amount
    cpu_seconds: Amount | None = Field(default=None, description="Of a gang without GPUs.")
    avoid_nodes: NodeIds = Field(
        default=(), description="Nodes that the next attempt should avoid."
    )
    avoid_required: bool = Field(
        default=False, description="Never on those nodes, until they are admitted again."
    )
    left_out: tuple[SampleRange, ...] = Field(
        default=(),
        max_length=LEFT_OUT_RANGES,
        description="Samples that later attempts go without, all of them; empty: no others than "
        "so far.",
    )


class JobStateChanged(Event):
    """A job went from one state to another. The scheduler is the only writer of job states."""

    type: ClassVar[str] = "job.state.changed"
    job_id: Identifier
    attempt: Annotated[int, Field(ge=0, le=ATTEMPT_MAX)]
    previous: JobState
    state: JobState
    reason: Message = ""


class JobReprioritized(Event):
    """The job's priority changed."""

    type: ClassVar[str] = "job.reprioritized"
    job_id: Identifier
    priority: Priority


class GangMemberChanged(Event):
    """One rank of the live attempt started, or ended in an orderly way."""

    type: ClassVar[str] = "gang.member.changed"
    job_id: Identifier
    attempt: Attempt
    rank: Rank
    status: Literal["started", "finished", "stopped"]


class ResumePointChanged(Event):
    """The next attempt of the job starts from this checkpoint (None: from the beginning)."""

    type: ClassVar[str] = "job.resume.changed"
    job_id: Identifier
    checkpoint: CheckpointRef | None = None
    restored: bool = Field(default=False, description="A user chose it; newer ones are superseded.")
    forgotten: CheckpointRef | None = Field(
        default=None, description="A deleted or damaged checkpoint, which is not used again."
    )


class CheckpointIntervalChanged(Event):
    """The job saves this often from now on, as was advised and as its spec lets it."""

    type: ClassVar[str] = "job.interval.changed"
    job_id: Identifier
    interval_s: IntervalSeconds


class TeamNoted(Event):
    """The scheduler knows this team's limits from here on."""

    type: ClassVar[str] = "team.noted"
    config: TeamConfig


class TeamBudgetNoted(Event):
    """The scheduler knows that a team's budget of the month is spent, or that there is room."""

    type: ClassVar[str] = "team.budget.noted"
    team: Identifier
    month: Month
    exhausted: bool


class TeamCpuBudgetNoted(Event):
    """The same of its budget for jobs without GPUs."""

    type: ClassVar[str] = "team.cpu_budget.noted"
    team: Identifier
    month: Month
    exhausted: bool


class NodeAdmitted(Event):
    """Gangs may be placed on this incarnation of the node."""

    type: ClassVar[str] = "node.admitted"
    node: NodeInfo


CordonReason = Literal["failed", "leaving", "drain", "superseded", "outdated"]
"""Why a node takes no gangs; outdated: its agent's release is too old."""


class NodeCordoned(Event):
    """No gang is placed on the node until it is admitted again."""

    type: ClassVar[str] = "node.cordoned"
    node_id: Identifier
    incarnation: Incarnation
    reason: CordonReason
    move_jobs: bool = Field(
        default=False, description="Its gangs move to other nodes after their next checkpoint."
    )
    oldest_accepted: Release | None = Field(
        default=None,
        description="Of a node that is outdated: the oldest release of an agent that is accepted.",
    )


class NodeUncordoned(Event):
    """A drained node takes gangs again."""

    type: ClassVar[str] = "node.uncordoned"
    node_id: Identifier
    incarnation: Incarnation


class PartNoted(Event):
    """A process of a service, gateway or tracker runs this release: it announced it."""

    type: ClassVar[str] = "part.noted"
    part: Name
    instance: Name
    release: Release | None = Field(
        default=None, description="None: it stopped, or announced nothing for hours."
    )


class FeatureEnabled(Event):
    """All parts know this feature, so what it adds may be written from here on."""

    type: ClassVar[str] = "feature.enabled"
    feature: Name
