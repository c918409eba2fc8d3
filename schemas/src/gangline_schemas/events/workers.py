"""gangline.workers: what the node agents report of nodes, ranks and checkpoints."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from gangline_schemas.artifacts import Artifact, OutputName
from gangline_schemas.base import Event, Identifier, Model, Timestamp
from gangline_schemas.events.trials import TrialEvaluated
from gangline_schemas.isolation import Isolation
from gangline_schemas.limits import (
    GPUS_PER_NODE,
    Attempt,
    Count,
    Gigabytes,
    GpuIndex,
    Label,
    Labels,
    Message,
    Metrics,
    Name,
    ObjectBytes,
    ObjectKey,
    Pid,
    Port,
    Rank,
    Release,
    Sample,
    Seconds,
    ShortText,
    Step,
    WorldSize,
)

Incarnation = Annotated[Name, StringConstraints(max_length=64)]
"""Of an agent: a new one each time that it starts from scratch."""


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
    cpu_only: bool = Field(
        default=False, description="It has no GPUs on purpose, and takes jobs without GPUs."
    )
    cpus: float = Field(ge=0.001, le=1e6)
    memory_gb: float = Field(ge=0.001, le=1e9)
    rendezvous_ports: tuple[Port, ...] = Field(
        min_length=1, max_length=65535, description="Ports that the agent can open a rendezvous on."
    )
    isolation: Isolation = Field(
        default=Isolation.NONE, description="How well its agent keeps teams apart."
    )
    runs_images: bool = Field(
        default=False, description="Its agent runs gangs in container images."
    )
    release: Release | None = Field(
        default=None, description="Its agent's release; None: a release that did not report it."
    )
    copies_port: Port | None = Field(
        default=None,
        description="Where its agent gives files of checkpoints to other agents; None: nowhere.",
    )
    loopback: Identifier | None = Field(
        default=None,
        description="Which loopback interface has its address; None: none, or a release that did "
        "not report it. Only nodes of the same one reach each other.",
    )

    @field_validator("gpus")
    @classmethod
    def _indexes_are_given_once(cls, gpus: tuple[GpuInfo, ...]) -> tuple[GpuInfo, ...]:
        if len({gpu.index for gpu in gpus}) < len(gpus):
            raise ValueError("names an index twice; each GPU has its own")
        return gpus

    @model_validator(mode="after")
    def _cpu_only_has_no_gpus(self) -> Self:
        if self.cpu_only and self.gpus:
            raise ValueError("cpu_only is for nodes without GPUs, and this one offers some")
        return self


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
    gpu_memory_taken: bool = Field(
        default=False,
        description="It ran out of GPU memory that a process outside its gang has.",
    )
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


class StepOutputWritten(Event):
    """An artifact that rank 0 of a job left is in the store. It comes before the rank's exit."""

    type: ClassVar[str] = "step.output.written"
    job_id: Identifier
    attempt: Attempt
    node_id: Identifier
    name: OutputName
    artifact: Artifact


class TrialReported(TrialEvaluated):
    """Rank 0 of a trial's job evaluated. Its exit comes after its last report."""

    type: ClassVar[str] = "trial.reported"


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
