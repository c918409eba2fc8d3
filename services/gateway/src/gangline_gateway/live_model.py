"""The values of the live model. All are frozen, so readers can keep them.

Gangs, waiting reasons and nodes are the scheduler's own values, as `scheduled`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from gangline_scheduler.core import model as scheduling
from gangline_schemas.api.checkpoints import Advice, Checkpoint
from gangline_schemas.api.data import Approval
from gangline_schemas.api.jobs import ENDED, Failure, Flag, Stopping, Waiting
from gangline_schemas.base import FieldError
from gangline_schemas.data_use import DataUse
from gangline_schemas.events.workers import NodeInfo, NodeUnfit
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


JobPlace = tuple[int, str]
"""A job's place in lists: milliseconds of its submission, and its id."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LiveJob:
    """One job, also after its end: the scheduler's state forgets ended ones.

    `spec` has no code_diff; it is None if the submission could not be decoded. `released`: the last
    attempt that gave its GPUs back.
    """

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
    priority: int = 50
    gpus: int = 0
    attempt: int = 0
    released: int = 0
    reason: str = ""
    errors: tuple[FieldError, ...] = ()
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
    def place(self) -> JobPlace:
        """The job's place in the order of lists."""
        return (self.submitted_at - _EPOCH) // timedelta(milliseconds=1), self.job_id


Silence = Literal["suspected", "failed"]


@dataclass(frozen=True, slots=True)
class NodeNotes:
    """Facts of a node that the scheduler's state does not have.

    `silence`: the fault manager's view, with the incarnation. `why`: why it is distrusted.
    `straggler`: the last notice of a slow rank there, as job, attempt and text.
    """

    admitted_at: datetime | None = None
    unfit: NodeUnfit | None = None
    silence: tuple[str, Silence] | None = None
    why: str = ""
    straggler: tuple[str, int, str] | None = None


@dataclass(frozen=True, slots=True)
class LiveNode:
    """One node. `scheduled` is None if it never joined; `unfit` is its failed check since then."""

    info: NodeInfo
    scheduled: scheduling.Node | None
    unfit: NodeUnfit | None
    notes: NodeNotes
    heard_at: datetime | None
    heartbeat: bytes

    @classmethod
    def of(
        cls,
        node: scheduling.Node | None,
        notes: NodeNotes,
        heard_at: datetime | None,
        heartbeat: bytes,
    ) -> LiveNode | None:
        """The node; None if nothing describes it."""
        unfit, admitted_at = notes.unfit, notes.admitted_at
        if unfit is not None and (admitted_at is None or unfit.checked_at > admitted_at):
            return cls(unfit.node, node, unfit, notes, heard_at, heartbeat)
        if node is None:
            return None
        return cls(node.info, node, None, notes, heard_at, heartbeat)

    @property
    def status(self) -> str:
        """The most important status, in one word."""
        node, silence = self.scheduled, ""
        if node is None or self.unfit is not None:
            return "unfit"
        if self.notes.silence is not None and self.notes.silence[0] == self.info.incarnation:
            silence = self.notes.silence[1]
        if silence == "failed" or node.down is not None:
            return "failed" if silence == "failed" else str(node.down)
        if node.drained:
            return "cordoned" if node.moving_since is None else "draining"
        return "outdated" if node.outdated is not None else silence or "ready"

    @property
    def reasons(self) -> str:
        """Why the node accepts no gangs, beyond its status."""
        if self.unfit is not None:
            return "; ".join(self.unfit.reasons)
        why, oldest = self.notes.why, self.scheduled.outdated if self.scheduled else None
        if oldest is None:
            return why
        agent = self.info.release or "of an unreported release"
        old = f"its agent is {agent}, the oldest accepted is {oldest}; upgrade the agent"
        return f"{why}; {old}" if why else old


@dataclass(frozen=True, slots=True)
class Outcome:
    """The decision about a request; `refused` is the reason, None if it was admitted."""

    refused: str | None = None


@dataclass(frozen=True, slots=True)
class JobDetails:
    """A job with its facts from other topics.

    `scheduled`: the scheduler's value, from its queue until its gang is released.
    """

    job: LiveJob
    scheduled: scheduling.Job | None = None
    progress: Progress | None = None
    failure: Failure | None = None
    checkpoints: tuple[Checkpoint, ...] = field(default=())
    advice: Advice | None = None
    flags: tuple[Flag, ...] = ()

    @property
    def gang(self) -> scheduling.Gang | None:
        """Its gang that has GPUs now."""
        return self.scheduled.gang if self.scheduled is not None else None

    @property
    def waiting(self) -> Waiting | None:
        """Why it does not start."""
        job = self.scheduled
        if job is None or job.waiting is None or job.gang is not None or self.job.ended:
            return None
        return Waiting(code=job.waiting.code, message=job.waiting.message, since=job.waiting.at)

    @property
    def stopping(self) -> Stopping | None:
        """The stop that its gang was asked for."""
        stop = self.gang.stop if self.gang is not None else None
        return None if stop is None else Stopping(reason=stop.reason.value, deadline=stop.deadline)


@dataclass
class LiveFacts:
    """All that is stored of the model. Of each dict, the first entry is removed first."""

    jobs: dict[str, LiveJob] = field(default_factory=dict)
    ended: dict[str, None] = field(default_factory=dict)
    notes: dict[str, NodeNotes] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    progress: dict[str, Progress] = field(default_factory=dict)
    """By team and run, as the topic's keys."""
    failures: dict[str, Failure] = field(default_factory=dict)
    checkpoints: dict[str, tuple[Checkpoint, ...]] = field(default_factory=dict)
    advice: dict[str, Advice] = field(default_factory=dict)
    flags: dict[str, tuple[Flag, ...]] = field(default_factory=dict)
    approvals: dict[DataUse, Approval] = field(default_factory=dict)
