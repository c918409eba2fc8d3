"""gangline.workers, heartbeats, steps and logs: what the node agents report."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from gangline_schemas.base import Event, Identifier, Model, Timestamp
from gangline_schemas.isolation import Isolation
from gangline_schemas.limits import (
    GPUS_PER_NODE,
    METRICS_PER_STEP,
    Attempt,
    Celsius,
    Count,
    Gigabytes,
    GpuIndex,
    Label,
    Labels,
    Message,
    MetricName,
    Metrics,
    MetricValue,
    Name,
    ObjectBytes,
    ObjectKey,
    Percent,
    Pid,
    Port,
    Rank,
    Release,
    Sample,
    Seconds,
    ShortText,
    Step,
    UnixMs,
    WorldSize,
)

Incarnation = Annotated[Name, StringConstraints(max_length=64)]
"""Of an agent: a new one each time that it starts from scratch."""
STEPS_PER_MESSAGE = 10_000
Columns = Annotated[
    dict[
        MetricName, Annotated[tuple[MetricValue | None, ...], Field(max_length=STEPS_PER_MESSAGE)]
    ],
    Field(max_length=METRICS_PER_STEP),
]
"""Metrics by column: an entry for each step, None where a step has none."""
LINE_CHARS = 16_384
"""Agents cut longer lines into several."""


class GpuInfo(Model):
    """One GPU of a node, or one CPU slot that stands in for it."""

    index: GpuIndex
    model: Name = Field(description="For example a100-80gb, or cpu for a slot.")
    memory_gb: Gigabytes


class NodeInfo(Model):
    """A node as its agent sees it. A new `incarnation` means that the agent started again."""

    node_id: Identifier
    incarnation: Incarnation
    address: Name = Field(description="Where its ranks can be reached by those of other nodes.")
    hostname: Label
    rack: Label = "rack-0"
    block: Label = "block-0"
    labels: Labels = Field(
        default_factory=dict,
        description="Labels of its owner; also its domain at levels such as nvlink.",
    )
    gpus: tuple[GpuInfo, ...] = Field(max_length=GPUS_PER_NODE)
    cpus: float = Field(ge=0.001, le=1e6)
    memory_gb: float = Field(ge=0.001, le=1e9)
    rendezvous_ports: tuple[Port, ...] = Field(
        min_length=1, max_length=65535, description="Ports that the agent can open a rendezvous on."
    )
    isolation: Isolation = Field(
        default=Isolation.NONE, description="How well its agent keeps teams apart."
    )
    release: Release | None = Field(
        default=None, description="Its agent's release; None: a release that did not report it."
    )
    copies_port: Port | None = Field(
        default=None,
        description="Where its agent gives files of checkpoints to other agents; None: nowhere.",
    )

    @field_validator("gpus")
    @classmethod
    def _indexes_are_given_once(cls, gpus: tuple[GpuInfo, ...]) -> tuple[GpuInfo, ...]:
        if len({gpu.index for gpu in gpus}) < len(gpus):
            raise ValueError("names an index twice; each GPU has its own")
        return gpus


class NodeJoined(Event):
    """The node offers its GPUs. No rank of an earlier incarnation lives on."""

    type: ClassVar[str] = "node.joined"
    node: NodeInfo


class NodeUnfit(Event):
    """The node does not join: its own check failed. It is checked again, and joins if it passes."""

    type: ClassVar[str] = "node.unfit"
    node: NodeInfo
    reasons: tuple[Message, ...] = Field(
        min_length=1, max_length=100, description="The problems, a clause each."
    )
    checked_at: Timestamp


class NodeLeaving(Event):
    """The node will leave: no new gang may be placed there."""

    type: ClassVar[str] = "node.leaving"
    node_id: Identifier
    incarnation: Incarnation
    reason: Message


class WorkerStarted(Event):
    """The process of one rank runs."""

    type: ClassVar[str] = "worker.started"
    job_id: Identifier
    attempt: Attempt
    rank: Rank
    node_id: Identifier
    incarnation: Incarnation
    pid: Pid


class ExitReason(StrEnum):
    """Why a rank's process is gone, as its agent knows it; never inferred from a signal."""

    FINISHED = "finished"  # it returned 0
    FAILED = "failed"  # it returned something else, or a signal from outside killed it
    STOPPED = "stopped"  # the agent stopped it: preempted, cancelled, restored, drained
    FENCED = "fenced"  # the agent killed it: its attempt was over
    LEASE_LOST = "lease_lost"  # the agent killed it: cut off from the bus for too long
    LAUNCH_FAILED = "launch_failed"  # it never ran: bundle, secret, checkpoint or port missing


REFERRED_STEPS = 1000
"""In the files of so many earlier steps a checkpoint's chunks may lie."""
LEFT_OUT_RANGES = 64
"""So many ranges of samples a job can leave out."""


class SampleRange(Model):
    """Samples that follow one another in a job's endless order, the same for every attempt."""

    first: Sample = Field(description="Its place in the order, counted from 0.")
    count: Sample = Field(ge=1)


class WorkerExited(Event):
    """The process of one rank is gone."""

    type: ClassVar[str] = "worker.exited"
    job_id: Identifier
    attempt: Attempt
    rank: Rank
    node_id: Identifier
    incarnation: Incarnation
    reason: ExitReason
    exit_code: int | None = Field(default=None, ge=0, le=255)
    signal: int | None = Field(default=None, ge=1, le=128)
    out_of_memory: bool = False
    message: Message = Field(default="", description="Its last words, redacted.")
    last_step: Step | None = None
    damaged_object: ObjectKey | None = Field(
        default=None,
        description="It could not start: the object at this key differs from the committed one.",
    )
    left_out: tuple[SampleRange, ...] = Field(
        default=(),
        max_length=LEFT_OUT_RANGES,
        description="Samples that the next attempt must leave out, all of them: this rank's loss "
        "was not finite there, or leapt up.",
    )


class WorkerStacks(Event):
    """The stacks of a rank of a hanging gang, taken before it was killed."""

    type: ClassVar[str] = "worker.stacks"
    job_id: Identifier
    attempt: Attempt
    rank: Rank
    node_id: Identifier
    pid: Pid
    state: str = Field(
        max_length=32, description="Of its process: running, sleeping, disk-sleep, stopped, ..."
    )
    last_step: Step | None = None
    stacks: str = Field(
        default="",
        max_length=32_768,
        description="Of each thread of its Python processes, the innermost call first; redacted.",
    )
    missing: Message | None = Field(
        default=None, description="Why there are no stacks, or not all of them."
    )


class DataBlockDamaged(Event):
    """A rank leaves a block of its data out: it is not what the manifest says, read again too."""

    type: ClassVar[str] = "data.block.damaged"
    job_id: Identifier
    attempt: Attempt
    rank: Rank
    node_id: Identifier
    snapshot: Name = Field(description="Its name, such as corpus@xxh3-9f....")
    shard: ShortText = Field(description="The shard's file.")
    block: Count = Field(description="Counted from 0 in the shard.")
    reason: Message


class ObjectDigest(Model):
    """One object in the store and what it must hold."""

    key: ObjectKey
    size_bytes: ObjectBytes
    xxh3: str = Field(pattern=r"^[0-9a-f]{32}$", description="xxh3-128 of the bytes, in hex.")


class NodeSaved(Event):
    """All of a node's ranks have their part of a checkpoint on its disk, whole and synced."""

    type: ClassVar[str] = "checkpoint.node.saved"
    job_id: Identifier
    attempt: Attempt
    step: Step
    node_id: Identifier
    ranks: tuple[Rank, ...] = Field(
        min_length=1, max_length=GPUS_PER_NODE, description="Those of the gang on this node."
    )


class CheckpointShardWritten(Event):
    """One rank's part of a checkpoint is in the store: its manifest and its shard files."""

    type: ClassVar[str] = "checkpoint.shard.written"
    job_id: Identifier
    attempt: Attempt
    step: Step
    rank: Rank
    world_size: WorldSize
    node_id: Identifier
    manifest: ObjectDigest
    shards: tuple[ObjectDigest, ...] = Field(max_length=16)
    write_s: Seconds = 0.0
    blocked_s: Seconds = 0.0
    metrics: Metrics = Field(default_factory=dict)


class CheckpointShardLost(Event):
    """One rank's part of a checkpoint did not get into the store, and is not tried again."""

    type: ClassVar[str] = "checkpoint.shard.lost"
    job_id: Identifier
    attempt: Attempt
    step: Step
    rank: Rank
    node_id: Identifier
    reason: Message


class RankActivity(StrEnum):
    """The activity that a rank's program reports. Only `training` is held to its steps' times."""

    STARTING = "starting"
    TRAINING = "training"
    CHECKPOINTING = "checkpointing"
    COMPILING = "compiling"
    EVALUATING = "evaluating"
    WAITING = "waiting"  # for its data


class TroubleKind(StrEnum):
    """The troubles that a rank can find in its own training."""

    NOT_FINITE = "not_finite"
    LOSS_SPIKE = "loss_spike"


class Trouble(Model):
    """A trouble of a rank's training that a person should see; the rank keeps running."""

    kind: TroubleKind
    step: Step
    message: Message


class RankStatus(Model):
    """One rank as its agent sees it."""

    rank: Rank
    pid: Pid
    step: Step | None = None
    activity: RankActivity | None = Field(default=None, description="None: it does not say.")
    quiet_s: Seconds | None = Field(
        default=None,
        description="Since it last ended a step or reported its activity; None: it never did.",
    )
    step_p99_s: Seconds | None = Field(
        default=None,
        description="The 99th percentile of its last 256 steps' times; None before the tenth.",
    )
    busy_s: Seconds | None = Field(
        default=None,
        description="The median of what its last 32 steps worked before they waited for others "
        "(the metric busy_s); None before the tenth.",
    )
    trouble: Trouble | None = Field(default=None, description="The last that it reported.")


class GangStatus(Model):
    """The ranks of one attempt on this node."""

    job_id: Identifier
    attempt: Attempt
    ranks: tuple[RankStatus, ...] = Field(max_length=GPUS_PER_NODE)


class GpuStatus(Model):
    """The present use of one GPU."""

    index: GpuIndex
    utilization: Percent | None = Field(default=None, description="Percent.")
    memory_used_gb: Gigabytes | None = None
    temperature_c: Celsius | None = None


class GpuHealth(Model):
    """Readings of one GPU and its driver. Counters begin when the driver was loaded."""

    index: GpuIndex
    temperature_c: Celsius | None = None
    slowdown_c: Celsius | None = Field(default=None, description="From here on it slows down.")
    ecc_corrected: Sample | None = None
    ecc_uncorrected: Sample | None = None
    reset_needed: bool | None = Field(
        default=None, description="Memory rows wait for a reset to be remapped, or cannot be."
    )
    xids: Count = Field(default=0, description="Critical Xids since the agent started.")
    last_xid: Count | None = None
    nvlink_errors: Count | None = Field(
        default=None, description="Replays, recoveries and CRC errors of all links."
    )
    slowed_by: tuple[Name, ...] = Field(
        default=(),
        max_length=16,
        description="hw_slowdown, hw_thermal, sw_thermal, hw_power_brake.",
    )


class NodeHealth(Model):
    """Readings that may predict a failure. None: it cannot be read here."""

    read_at: Timestamp
    gpus: tuple[GpuHealth, ...] = Field(default=(), max_length=GPUS_PER_NODE)
    disk_free_gb: Gigabytes | None = Field(default=None, description="Of the agent's folder.")
    disk_write_s: Seconds | None = Field(
        default=None, description="For 4 KiB to be on that disk; None: it took them not."
    )
    disk_write_errors: Count = Field(default=0, description="Since the agent started.")
    memory_available_gb: Gigabytes | None = None
    memory_uncorrected: Count | None = Field(
        default=None, description="ECC errors of the main memory since the machine started."
    )
    clock_synced: bool | None = None
    clock_error_s: Seconds | None = Field(
        default=None, description="At most so far off, if it is synced."
    )


class WorkerHeartbeat(Event):
    """The node lives, and these ranks on it."""

    type: ClassVar[str] = "worker.heartbeat"
    node_id: Identifier
    incarnation: Incarnation
    sequence: Count
    sent_at: Timestamp
    joined: bool = Field(default=True, description="Whether the node has offered its GPUs.")
    gangs: tuple[GangStatus, ...] = Field(default=(), max_length=GPUS_PER_NODE)
    gpus: tuple[GpuStatus, ...] = Field(default=(), max_length=GPUS_PER_NODE)
    cpu_percent: float | None = Field(default=None, ge=0, le=1e6)
    memory_used_gb: Gigabytes | None = None
    health: NodeHealth | None = Field(
        default=None, description="The newest reading, until a heartbeat with it was delivered."
    )


class WorkerStep(Event):
    """Metrics of consecutive steps of one rank, by column: entry i belongs to `step[i]`."""

    type: ClassVar[str] = "worker.step"
    run_id: Identifier
    team: Identifier
    attempt: Attempt
    rank: Rank
    step: tuple[Step, ...] = Field(min_length=1, max_length=STEPS_PER_MESSAGE)
    time_ms: tuple[UnixMs, ...] = Field(
        max_length=STEPS_PER_MESSAGE, description="Unix time of each step's end in milliseconds."
    )
    metrics: Columns

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

    time_ms: UnixMs
    stream: Literal["stdout", "stderr"]
    text: str = Field(max_length=LINE_CHARS)


class WorkerLog(Event):
    """Consecutive lines of one rank; `first_line` counts from 0 in the attempt."""

    type: ClassVar[str] = "worker.log"
    job_id: Identifier
    team: Identifier
    attempt: Attempt
    rank: Rank
    node_id: Identifier
    first_line: Count
    lines: tuple[LogLine, ...] = Field(min_length=1, max_length=10_000)
