"""The values of the live model. All are frozen, so readers can keep them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gangline_schemas.api.checkpoints import Advice, Checkpoint
from gangline_schemas.api.data import Approval
from gangline_schemas.api.jobs import ENDED, Failure, Flag, Stopping, Waiting
from gangline_schemas.base import FieldError
from gangline_schemas.data_use import DataUse
from gangline_schemas.events.scheduling import NodeAssignment
from gangline_schemas.events.workers import NodeInfo
from gangline_schemas.job import JobSpec


@dataclass(frozen=True, slots=True)
class Progress:
    """A run's progress at a time, as `run.progress` reported it."""

    attempt: int
    step: int
    metrics: Mapping[str, float]
    at: datetime
    step_s: float | None = None
    tokens_per_s: float | None = None
    data_wait_share: float | None = None
    stalled_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class LiveJob:
    """One job. `spec` has no code_diff; it is None if the submission could not be decoded."""

    job_id: str
    team: str
    name: str
    user: str
    state: str
    submitted_at: datetime
    spec: JobSpec | None = None
    digest: str = ""
    admitted: bool = False
    queued: bool = False
    cancelled: bool = False
    priority: int = 50
    gpus: int = 0
    attempt: int = 0
    reason: str = ""
    errors: tuple[FieldError, ...] = ()
    waiting: Waiting | None = None
    waiting_since: datetime | None = None
    nodes: tuple[NodeAssignment, ...] = ()
    stopping: Stopping | None = None
    allocated_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    gpu_seconds: float = 0.0
    checkpoint_interval_s: float | None = None

    @property
    def ended(self) -> bool:
        """Whether its state is final."""
        return self.state in ENDED

    @property
    def restarts(self) -> int:
        """Attempts after the first one."""
        return max(0, self.attempt - 1)

    @property
    def allocated_gpus(self) -> int:
        """GPUs that are allocated to its gang now."""
        return sum(len(node.gpus) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class LiveNode:
    """One node. `silence` is the fault manager's view: "", suspected or failed.

    `cordoned`: the reason, "move" for a drain that moves its gangs, or "unfit" for a node that has
    not joined; `why`: details of it. `outdated`: the oldest accepted release, if its agent is
    older. `since`: when it was admitted or found unfit. `straggler`: the last notice of a slow
    rank there, as job, attempt and text.
    """

    info: NodeInfo
    cordoned: str = ""
    why: str = ""
    since: datetime | None = None
    silence: str = ""
    straggler: tuple[str, int, str] | None = None
    heard_at: datetime | None = None
    heartbeat: bytes = b""
    outdated: str = ""

    @property
    def status(self) -> str:
        """The most important status, in one word."""
        if self.silence == "failed" or self.cordoned == "failed":
            return "failed"
        if self.cordoned:
            return {"drain": "cordoned", "move": "draining"}.get(self.cordoned, self.cordoned)
        if self.outdated:
            return "outdated"
        return self.silence or "ready"

    @property
    def reasons(self) -> str:
        """Why the node accepts no gangs, beyond its status."""
        if not self.outdated:
            return self.why
        agent = self.info.release or "of an unreported release"
        old = f"its agent is {agent}, the oldest accepted is {self.outdated}; upgrade the agent"
        return f"{self.why}; {old}" if self.why else old


@dataclass(frozen=True, slots=True)
class Outcome:
    """The decision about a request; `refused` is the reason, None if it was admitted."""

    refused: str | None = None


@dataclass(frozen=True, slots=True)
class JobDetails:
    """A job with its facts from other topics."""

    job: LiveJob
    progress: Progress | None = None
    failure: Failure | None = None
    checkpoints: tuple[Checkpoint, ...] = field(default=())
    advice: Advice | None = None
    flags: tuple[Flag, ...] = ()


@dataclass
class LiveFacts:
    """All that was folded, except heartbeats."""

    jobs: dict[str, LiveJob] = field(default_factory=dict)
    nodes: dict[str, LiveNode] = field(default_factory=dict)
    left: dict[str, None] = field(default_factory=dict)
    """Nodes that left; the first is removed first."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    ended: dict[str, None] = field(default_factory=dict)
    """Jobs that ended; the first is removed first."""
    progress: dict[str, Progress] = field(default_factory=dict)
    """By team and run, as the topic's keys."""
    failures: dict[str, Failure] = field(default_factory=dict)
    checkpoints: dict[str, tuple[Checkpoint, ...]] = field(default_factory=dict)
    advice: dict[str, Advice] = field(default_factory=dict)
    flags: dict[str, tuple[Flag, ...]] = field(default_factory=dict)
    approvals: dict[DataUse, Approval] = field(default_factory=dict)
