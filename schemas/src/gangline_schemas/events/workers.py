"""gangline.workers, heartbeats, steps and logs: what the node agents report."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from gangline_schemas.base import Event, Identifier, Model, Timestamp
from gangline_schemas.isolation import Isolation


class GpuInfo(Model):
    """One GPU of a node, or one CPU slot that stands in for it."""

    index: int = Field(ge=0)
    model: str = Field(description="For example h100, or cpu for a slot.")
    memory_gb: float = Field(ge=0)


class NodeInfo(Model):
    """A node as its agent sees it. A new `incarnation` means that the agent started anew."""

    node_id: Identifier
    incarnation: str = Field(min_length=1, max_length=64)
    address: str = Field(description="Where its ranks can be reached by those of other nodes.")
    hostname: str
    rack: str = "rack-0"
    block: str = "block-0"
    labels: dict[str, str] = Field(
        default_factory=dict,
        max_length=64,
        description="What its owner says of it; also its domain at levels such as nvlink.",
    )
    gpus: tuple[GpuInfo, ...]
    cpus: float = Field(gt=0)
    memory_gb: float = Field(gt=0)
    rendezvous_ports: tuple[int, ...] = Field(
        min_length=1, description="Ports that the agent can open a rendezvous on."
    )
    isolation: Isolation = Field(
        default=Isolation.NONE, description="How well its agent keeps teams apart."
    )
    copies_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Where its agent gives files of checkpoints to other agents; None: nowhere.",
    )


class NodeJoined(Event):
    """The node offers its GPUs. No rank of an earlier incarnation lives on."""

    type: ClassVar[str] = "node.joined"
    node: NodeInfo


class NodeUnfit(Event):
    """The node does not join: its own check failed. It is checked again, and joins if it passes."""

    type: ClassVar[str] = "node.unfit"
    node: NodeInfo
    reasons: tuple[str, ...] = Field(min_length=1, description="What is wrong, a clause each.")
    checked_at: Timestamp


class NodeLeaving(Event):
    """The node will go: nothing new shall be placed there."""

    type: ClassVar[str] = "node.leaving"
    node_id: Identifier
    incarnation: str
    reason: str


class WorkerStarted(Event):
    """The process of one rank runs."""

    type: ClassVar[str] = "worker.started"
    job_id: Identifier
    attempt: int = Field(ge=1)
    rank: int = Field(ge=0)
    node_id: Identifier
    incarnation: str
    pid: int


class ExitReason(StrEnum):
    """Why a rank's process is gone, as its agent knows it; never inferred from a signal."""

    FINISHED = "finished"  # it returned 0
    FAILED = "failed"  # it returned something else, or a signal from outside killed it
    STOPPED = "stopped"  # the agent stopped it: preempted, cancelled, restored, drained
    FENCED = "fenced"  # the agent killed it: its attempt was over
    LEASE_LOST = "lease_lost"  # the agent killed it: cut off from the bus for too long
    LAUNCH_FAILED = "launch_failed"  # it never ran: bundle, secret, checkpoint or port missing


LEFT_OUT_RANGES = 64
"""So many ranges of samples a job can leave out."""


class SampleRange(Model):
    """Samples that follow one another in a job's endless order, the same for every attempt."""

    first: int = Field(ge=0, description="Its place in the order, counted from 0.")
    count: int = Field(ge=1)


class WorkerExited(Event):
    """The process of one rank is gone."""

    type: ClassVar[str] = "worker.exited"
    job_id: Identifier
    attempt: int = Field(ge=1)
    rank: int = Field(ge=0)
    node_id: Identifier
    incarnation: str
    reason: ExitReason
    exit_code: int | None = Field(default=None, ge=0, le=255)
    signal: int | None = Field(default=None, ge=1)
    out_of_memory: bool = False
    message: str = Field(default="", max_length=4096, description="Its last words, redacted.")
    last_step: int | None = None
    damaged_object: str | None = Field(
        default=None,
        description="It could not start: the object at this key is not what was committed.",
    )
    left_out: tuple[SampleRange, ...] = Field(
        default=(),
        max_length=LEFT_OUT_RANGES,
        description="Samples that the next attempt shall go without, all of them: this rank's loss "
        "was not finite there, or leapt up.",
    )


class WorkerStacks(Event):
    """What a rank of a hanging gang was doing: taken before it was killed."""

    type: ClassVar[str] = "worker.stacks"
    job_id: Identifier
    attempt: int = Field(ge=1)
    rank: int = Field(ge=0)
    node_id: Identifier
    pid: int
    state: str = Field(
        max_length=32, description="Of its process: running, sleeping, disk-sleep, stopped, ..."
    )
    last_step: int | None = None
    stacks: str = Field(
        default="",
        max_length=32_768,
        description="Of each thread of its Python processes, the innermost call first; redacted.",
    )
    missing: str | None = Field(
        default=None, max_length=500, description="Why there are no stacks, or not all of them."
    )


class DataBlockDamaged(Event):
    """A rank leaves a block of its data out: it is not what the manifest says, read again too."""

    type: ClassVar[str] = "data.block.damaged"
    job_id: Identifier
    attempt: int = Field(ge=1)
    rank: int = Field(ge=0)
    node_id: Identifier
    snapshot: str = Field(max_length=128, description="Its name, such as corpus@xxh3-9f....")
    shard: str = Field(max_length=512, description="The shard's file.")
    block: int = Field(ge=0, description="Counted from 0 in the shard.")
    reason: str = Field(max_length=1000)


class ObjectDigest(Model):
    """One object in the store and what it must hold."""

    key: str
    size_bytes: int = Field(ge=0)
    xxh3: str = Field(pattern=r"^[0-9a-f]{32}$", description="xxh3-128 of the bytes, in hex.")


class NodeSaved(Event):
    """All of a node's ranks have their part of a checkpoint on its disk, whole and synced."""

    type: ClassVar[str] = "checkpoint.node.saved"
    job_id: Identifier
    attempt: int = Field(ge=1)
    step: int = Field(ge=0)
    node_id: Identifier
    ranks: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        min_length=1, description="Those of the gang on this node."
    )


class CheckpointShardWritten(Event):
    """One rank's part of a checkpoint is in the store: its manifest and its shard files."""

    type: ClassVar[str] = "checkpoint.shard.written"
    job_id: Identifier
    attempt: int = Field(ge=1)
    step: int = Field(ge=0)
    rank: int = Field(ge=0)
    world_size: int = Field(ge=1)
    node_id: Identifier
    manifest: ObjectDigest
    shards: tuple[ObjectDigest, ...]
    write_s: float = Field(default=0.0, ge=0)
    blocked_s: float = Field(default=0.0, ge=0)
    metrics: dict[str, float] = Field(default_factory=dict)


class CheckpointShardLost(Event):
    """One rank's part of a checkpoint did not get into the store, and is not tried again."""

    type: ClassVar[str] = "checkpoint.shard.lost"
    job_id: Identifier
    attempt: int = Field(ge=1)
    step: int = Field(ge=0)
    rank: int = Field(ge=0)
    node_id: Identifier
    reason: str = Field(max_length=1000)


class RankActivity(StrEnum):
    """What a rank's program says that it does. Only who trains is held to its steps' times."""

    STARTING = "starting"
    TRAINING = "training"
    CHECKPOINTING = "checkpointing"
    COMPILING = "compiling"
    EVALUATING = "evaluating"
    WAITING = "waiting"  # for its data


class TroubleKind(StrEnum):
    """What a rank can find wrong with its own training."""

    NOT_FINITE = "not_finite"
    LOSS_SPIKE = "loss_spike"


class Trouble(Model):
    """Something about a rank's training that a person should see; the rank goes on."""

    kind: TroubleKind
    step: int
    message: str = Field(max_length=500)


class RankStatus(Model):
    """One rank as its agent sees it."""

    rank: int = Field(ge=0)
    pid: int
    step: int | None = None
    activity: RankActivity | None = Field(default=None, description="None: it does not say.")
    quiet_s: float | None = Field(
        default=None,
        ge=0,
        description="Since it last ended a step or said what it does; None: it never did.",
    )
    step_p99_s: float | None = Field(
        default=None,
        ge=0,
        description="The 99th percentile of its last 256 steps' times; None before the tenth.",
    )
    busy_s: float | None = Field(
        default=None,
        ge=0,
        description="The median of what its last 32 steps worked before they waited for others "
        "(the metric busy_s); None before the tenth.",
    )
    trouble: Trouble | None = Field(default=None, description="The last that it told of.")


class GangStatus(Model):
    """The ranks of one attempt on this node."""

    job_id: Identifier
    attempt: int = Field(ge=1)
    ranks: tuple[RankStatus, ...]


class GpuStatus(Model):
    """What one GPU is doing."""

    index: int = Field(ge=0)
    utilization: float | None = Field(default=None, ge=0, le=100, description="Percent.")
    memory_used_gb: float | None = Field(default=None, ge=0)
    temperature_c: float | None = None


class GpuHealth(Model):
    """What one GPU and its driver say. Counters begin when the driver was loaded."""

    index: int = Field(ge=0)
    temperature_c: float | None = None
    slowdown_c: float | None = Field(default=None, description="From here on it slows down.")
    ecc_corrected: int | None = Field(default=None, ge=0)
    ecc_uncorrected: int | None = Field(default=None, ge=0)
    reset_needed: bool | None = Field(
        default=None, description="Memory rows wait for a reset to be remapped, or cannot be."
    )
    xids: int = Field(default=0, ge=0, description="Critical Xids since the agent started.")
    last_xid: int | None = None
    nvlink_errors: int | None = Field(
        default=None, ge=0, description="Replays, recoveries and CRC errors of all links."
    )
    slowed_by: tuple[str, ...] = Field(
        default=(), description="hw_slowdown, hw_thermal, sw_thermal, hw_power_brake."
    )


class NodeHealth(Model):
    """What may tell of a failure to come. None: it cannot be read here."""

    read_at: Timestamp
    gpus: tuple[GpuHealth, ...] = ()
    disk_free_gb: float | None = Field(default=None, ge=0, description="Of the agent's folder.")
    disk_write_s: float | None = Field(
        default=None, ge=0, description="For 4 KiB to be on that disk; None: it took them not."
    )
    disk_write_errors: int = Field(default=0, ge=0, description="Since the agent started.")
    memory_available_gb: float | None = Field(default=None, ge=0)
    memory_uncorrected: int | None = Field(
        default=None, ge=0, description="ECC errors of the main memory since the machine started."
    )
    clock_synced: bool | None = None
    clock_error_s: float | None = Field(
        default=None, ge=0, description="At most so far off, if it is synced."
    )


class WorkerHeartbeat(Event):
    """The node lives, and these ranks on it."""

    type: ClassVar[str] = "worker.heartbeat"
    node_id: Identifier
    incarnation: str
    sequence: int = Field(ge=0)
    sent_at: Timestamp
    gangs: tuple[GangStatus, ...] = ()
    gpus: tuple[GpuStatus, ...] = ()
    cpu_percent: float | None = None
    memory_used_gb: float | None = None
    health: NodeHealth | None = Field(
        default=None, description="The newest reading, until a heartbeat with it was delivered."
    )


class WorkerStep(Event):
    """Metrics of consecutive steps of one rank, by column: entry i belongs to `step[i]`."""

    type: ClassVar[str] = "worker.step"
    run_id: Identifier
    team: Identifier
    attempt: int = Field(ge=1)
    rank: int = Field(ge=0)
    step: tuple[int, ...] = Field(min_length=1, max_length=10_000)
    time_ms: tuple[int, ...] = Field(description="Unix time of each step's end in milliseconds.")
    metrics: dict[str, tuple[float | None, ...]] = Field(max_length=1000)

    @model_validator(mode="after")
    def _columns_are_equally_long(self) -> Self:
        wanted = len(self.step)
        if len(self.time_ms) != wanted:
            raise ValueError(f"time_ms has {len(self.time_ms)} entries, step has {wanted}")
        for name, column in self.metrics.items():
            if len(column) != wanted:
                raise ValueError(f"metrics.{name} has {len(column)} entries, step has {wanted}")
        return self


class LogLine(Model):
    """One line that a rank wrote."""

    time_ms: int
    stream: Literal["stdout", "stderr"]
    text: str


class WorkerLog(Event):
    """Consecutive lines of one rank; `first_line` counts from 0 in the attempt."""

    type: ClassVar[str] = "worker.log"
    job_id: Identifier
    team: Identifier
    attempt: int = Field(ge=1)
    rank: int = Field(ge=0)
    node_id: Identifier
    first_line: int = Field(ge=0)
    lines: tuple[LogLine, ...] = Field(min_length=1)
