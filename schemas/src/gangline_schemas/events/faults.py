"""gangline.faults: which nodes and gangs live, which failed, which restart. By fault-manager."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Literal

from pydantic import Field

from gangline_schemas.base import Event, Identifier, NodeIds, Team, Timestamp
from gangline_schemas.events.heartbeats import TroubleKind
from gangline_schemas.events.workers import LEFT_OUT_RANGES, Incarnation, SampleRange, WorkerExited
from gangline_schemas.failure_policy import RestartPolicy
from gangline_schemas.limits import (
    MAX_NODES,
    Amount,
    Attempt,
    Count,
    ExitCode,
    Few,
    GangSize,
    Message,
    Name,
    Rank,
    Ratio,
    Seconds,
    ShortText,
    Signal,
    Step,
)


class FailureCause(StrEnum):
    """Classes of failure. See docs/concepts/faults.md for what leads to each."""

    USER_ERROR = "user_error"
    OUT_OF_MEMORY = "out_of_memory"
    PROCESS = "process"
    NODE = "node"
    INFRASTRUCTURE = "infrastructure"
    PREEMPTION = "preemption"
    HANG = "hang"


class FailureClass(StrEnum):
    """The kind of failure: finer than the cause, and the name of its page in docs/runbooks."""

    USER_ERROR = "user_error"
    OUT_OF_MEMORY = "out_of_memory"
    PROCESS = "process"
    NODE = "node"
    DEVICE = "device"
    NETWORK = "network"
    STORAGE = "storage"
    DATA = "data"
    LAUNCH = "launch"
    HANG = "hang"
    NAN = "nan"
    UNKNOWN = "unknown"


class NodeWatched(Event):
    """The fault manager expects heartbeats from this incarnation."""

    type: ClassVar[str] = "node.watched"
    node_id: Identifier
    incarnation: Incarnation


class NodeSuspected(Event):
    """The node was silent for half the timeout."""

    type: ClassVar[str] = "node.suspected"
    node_id: Identifier
    incarnation: Incarnation
    silent_s: Seconds


class NodeFailed(Event):
    """The node counts as gone: silent for the timeout, or its agent came back without its ranks.

    `forgotten`: it sends heartbeats, but this incarnation is not known any more; its agent joins
    again.
    """

    type: ClassVar[str] = "node.failed"
    node_id: Identifier
    incarnation: Incarnation
    reason: Literal["silent", "restarted", "forgotten"]
    silent_s: Seconds = 0.0


class NodeLeft(Event):
    """The node said goodbye (`node.leaving`): no heartbeat of this incarnation is expected."""

    type: ClassVar[str] = "node.left"
    node_id: Identifier
    incarnation: Incarnation


class NodeRecovered(Event):
    """A failed or suspected node sends heartbeats again."""

    type: ClassVar[str] = "node.recovered"
    node_id: Identifier
    incarnation: Incarnation
    was: Literal["failed", "suspected"]


class NodeDistrusted(Event):
    """The node failed too often: it takes no new gangs until a person admits it again."""

    type: ClassVar[str] = "node.distrusted"
    node_id: Identifier
    incarnation: Incarnation
    failures: Few = Field(ge=1, description="That named the node since `since`.")
    jobs: Few = Field(ge=1, description="That met them.")
    since: Timestamp
    distrusted_at: Timestamp
    reason: Message = Field(default="", description="Its broken parts, as its health reports them.")


class GangWatched(Event):
    """The fault manager knows this attempt, its nodes and its restart policy."""

    type: ClassVar[str] = "gang.watched"
    job_id: Identifier
    attempt: Attempt
    nodes: NodeIds
    incarnations: tuple[Incarnation, ...] = Field(
        max_length=MAX_NODES, description="Of `nodes`, in the same order."
    )
    restart: RestartPolicy
    team: Team = ""
    world_size: GangSize = 0
    allocated_at: Timestamp | None = None
    resume_step: Step | None = None


class GangRunning(Event):
    """All ranks of an attempt that follows a failure run."""

    type: ClassVar[str] = "gang.running"
    job_id: Identifier
    attempt: Attempt
    running_at: Timestamp


class JobProgressed(Event):
    """The job committed a checkpoint: what restarts are judged by has changed."""

    type: ClassVar[str] = "job.progressed"
    job_id: Identifier
    attempt: Attempt = Field(description="Whose checkpoint it is.")
    step: Step
    committed_at: Timestamp
    restarts_used: Few = Field(description="One less than before when one came back.")


class GangUnwatched(Event):
    """The attempt is over; nothing that its ranks report matters any more."""

    type: ClassVar[str] = "gang.unwatched"
    job_id: Identifier
    attempt: Attempt
    final: bool = Field(default=False, description="The job ended; its failure count is dropped.")


class ExitNoted(Event):
    """A rank failed in a way that another rank's failure may explain; the verdict waits for it."""

    type: ClassVar[str] = "gang.exit.noted"
    exited: WorkerExited
    noted_at: Timestamp


class GangFailed(Event):
    """An attempt failed. The scheduler releases it and starts the next one, or ends the job."""

    type: ClassVar[str] = "gang.failed"
    job_id: Identifier
    attempt: Attempt
    cause: FailureCause
    action: Literal["restart", "fail"]
    message: Message
    first_rank: Rank | None = Field(default=None, description="The rank that failed first.")
    node_id: Identifier | None = None
    exit_code: ExitCode | None = None
    signal: Signal | None = None
    avoid_nodes: NodeIds = ()
    restarts_used: Few
    restarts_max: Few
    failed_at: Timestamp
    failure_class: FailureClass = FailureClass.UNKNOWN
    review: bool = Field(default=False, description="A person must review it: bad data.")
    blamed_nodes: NodeIds = Field(
        default=(), description="Those that are at fault, whatever ran there."
    )
    team: Team = ""
    failures: Few = Field(default=1, ge=1, description="Of this job so far, this one included.")
    restarts_idle: Few = Field(
        default=0, description="The last so many restarts got no further than before."
    )
    world_size: GangSize = 0
    last_step: Step | None = Field(default=None, description="The last one that a rank reported.")
    committed_step: Step | None = Field(default=None, description="Of the last checkpoint.")
    work_lost_s: Amount = Field(
        default=0.0, description="Training since the last checkpoint, to be done again."
    )
    left_out: tuple[SampleRange, ...] = Field(
        default=(),
        max_length=LEFT_OUT_RANGES,
        description="All samples that the job leaves out; empty: no more than so far.",
    )


class GangTroubled(Event):
    """A rank reported a trouble of its training for a person to see; the gang keeps running."""

    type: ClassVar[str] = "gang.troubled"
    job_id: Identifier
    attempt: Attempt
    team: Team = ""
    kind: TroubleKind
    rank: Rank = Field(description="The first rank that reported it.")
    node_id: Identifier
    step: Step
    message: Message
    noted_at: Timestamp

    @property
    def key(self) -> str:
        """The identity of a trouble: it is reported once in an attempt."""
        return f"{self.kind.value} in step {self.step}"


class WorkerStraggling(Event):
    """A rank is slow, by its own work, not by waiting; said once of a rank in an attempt.

    A score is how much of the usual work it does in the same time: 1 is as usual, 0.5 half of it.
    """

    type: ClassVar[str] = "worker.straggling"
    job_id: Identifier
    attempt: Attempt
    team: Team = ""
    rank: Rank
    node_id: Identifier
    busy_s: Seconds = Field(description="Its work in a step, before it waits for others.")
    usual_s: Seconds = Field(description="The work that the score compares it to.")
    against: Literal["gang", "itself"] = Field(
        description="gang: the median of its gang; itself: its own best in this attempt."
    )
    relative: Ratio = Field(description="The gang's median work / its own.")
    individual: Ratio = Field(description="Its own least work / its work now.")
    host: Ratio = Field(description="The median of `relative` of this gang's ranks there.")
    message: Message
    since: Timestamp
    noted_at: Timestamp
    blamed: bool = Field(default=False, description="It counts towards node.distrusted.")


class JobFlagged(Event):
    """A person must review the job: it leaves out a block of its data. Once a block."""

    type: ClassVar[str] = "job.flagged"
    job_id: Identifier
    attempt: Attempt = Field(description="Whose rank said it first.")
    rank: Rank
    node_id: Identifier
    snapshot: Name
    shard: ShortText
    block: Count
    reason: Message
    flagged_at: Timestamp


class IncidentClosed(Event):
    """One failure from its beginning to its end, for people. Times are those of its parts."""

    type: ClassVar[str] = "incident.closed"
    job_id: Identifier
    team: Team
    attempt: Attempt = Field(description="The one that failed.")
    failure_class: FailureClass
    cause: FailureCause
    action: Literal["restart", "fail"]
    message: Message = Field(description="The failure in one sentence.")
    first_rank: Rank | None = None
    node_id: Identifier | None = None
    avoid_nodes: NodeIds = ()
    review: bool = False
    failures: Few = Field(ge=1, description="Of this job so far, this one included.")
    world_size: GangSize
    last_step: Step | None = None
    committed_step: Step | None = None
    resume_step: Step | None = Field(default=None, description="Where the next attempt began.")
    failed_at: Timestamp
    next_attempt: Attempt | None = None
    allocated_at: Timestamp | None = Field(default=None, description="It had its GPUs again.")
    running_at: Timestamp | None = Field(default=None, description="All its ranks ran again.")
    first_step_at: Timestamp | None = Field(
        default=None, description="Its first step, as a heartbeat reported it; to about a second."
    )
    outcome: Literal["recovered", "failed_again", "job_failed", "job_ended"]
    closed_at: Timestamp
    recover_s: Amount | None = Field(
        default=None, description="Until its first step, else until it ran; if recovered."
    )
    work_lost_s: Amount
    down_s: Amount = Field(description="From the failure to the recovery, or to the end.")
    lost_gpu_s: Amount = Field(description="(work_lost_s + down_s) x world_size.")


class CheckpointRequested(Event):
    """The gang must save a checkpoint now, before an expected event happens."""

    type: ClassVar[str] = "checkpoint.requested"
    job_id: Identifier
    attempt: Attempt
    reason: Message
    node_id: Identifier | None = Field(default=None, description="Of which it is expected.")
    requested_at: Timestamp | None = None
