"""gangline.heartbeats: what each node agent reports of its node and the ranks on it."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from gangline_schemas.base import Event, Identifier, Model, Timestamp
from gangline_schemas.events.workers import Incarnation
from gangline_schemas.limits import (
    GPUS_PER_NODE,
    Attempt,
    Celsius,
    Count,
    Gigabytes,
    GpuIndex,
    Message,
    Name,
    Percent,
    Pid,
    Rank,
    Rate,
    Sample,
    Seconds,
    Step,
)


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


class GpuUse(Model):
    """More of the use of one GPU."""

    index: GpuIndex
    power_w: Rate | None = None
    sm_percent: Percent | None = Field(
        default=None, description="Of its multiprocessors, so many were busy on average."
    )


class NodeUse(Model):
    """The use of a node since the reading before. MB are 10^6 bytes, a second."""

    read_at: Timestamp
    disk_read_mb_s: Rate | None = None
    disk_write_mb_s: Rate | None = None
    disk_free_gb: Gigabytes | None = Field(default=None, description="Of the agent's folder.")
    disk_used_percent: Percent | None = None
    network_receive_mb_s: Rate | None = Field(
        default=None, description="All interfaces but loopback, with InfiniBand's ports."
    )
    network_send_mb_s: Rate | None = None
    gpus: tuple[GpuUse, ...] = Field(default=(), max_length=GPUS_PER_NODE)


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
    use: NodeUse | None = Field(default=None, description="The same, read every 30 s by default.")
