"""gangline.faults: what is alive, what failed and what shall happen. Written by fault-manager."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Literal

from pydantic import Field

from gangline_schemas.base import Event, Identifier, Timestamp
from gangline_schemas.events.workers import WorkerExited
from gangline_schemas.job import RestartPolicy


class FailureCause(StrEnum):
    """Classes of failure. See docs/concepts/faults.md for what leads to each."""

    USER_ERROR = "user_error"
    OUT_OF_MEMORY = "out_of_memory"
    PROCESS = "process"
    NODE = "node"
    INFRASTRUCTURE = "infrastructure"
    PREEMPTION = "preemption"
    HANG = "hang"


class NodeWatched(Event):
    """The fault manager expects heartbeats from this incarnation."""

    type: ClassVar[str] = "node.watched"
    node_id: Identifier
    incarnation: str


class NodeSuspected(Event):
    """The node was silent for half the timeout."""

    type: ClassVar[str] = "node.suspected"
    node_id: Identifier
    incarnation: str
    silent_s: float


class NodeFailed(Event):
    """The node counts as gone: silent for the timeout, or its agent came back without its ranks."""

    type: ClassVar[str] = "node.failed"
    node_id: Identifier
    incarnation: str
    reason: Literal["silent", "restarted", "left"]
    silent_s: float = 0.0


class NodeRecovered(Event):
    """A failed or suspected node sends heartbeats again."""

    type: ClassVar[str] = "node.recovered"
    node_id: Identifier
    incarnation: str
    was: Literal["failed", "suspected"]


class GangWatched(Event):
    """The fault manager knows this attempt, its nodes and its restart policy."""

    type: ClassVar[str] = "gang.watched"
    job_id: Identifier
    attempt: int = Field(ge=1)
    nodes: tuple[str, ...]
    incarnations: tuple[str, ...] = Field(description="Of `nodes`, in the same order.")
    restart: RestartPolicy


class GangUnwatched(Event):
    """The attempt is over; nothing that its ranks report matters any more."""

    type: ClassVar[str] = "gang.unwatched"
    job_id: Identifier
    attempt: int = Field(ge=1)
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
    attempt: int = Field(ge=1)
    cause: FailureCause
    action: Literal["restart", "fail"]
    message: str
    first_rank: int | None = Field(default=None, description="The rank that failed first.")
    node_id: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    avoid_nodes: tuple[str, ...] = ()
    restarts_used: int = Field(ge=0)
    restarts_max: int = Field(ge=0)
    failed_at: Timestamp


class CheckpointRequested(Event):
    """The gang shall save a checkpoint now, before what is expected happens."""

    type: ClassVar[str] = "checkpoint.requested"
    job_id: Identifier
    attempt: int = Field(ge=1)
    reason: str
