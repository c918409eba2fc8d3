"""gangline.quota: admission and usage. Only the quota service writes here."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from gangline_schemas.base import ERRORS_SHOWN, Event, FieldError, Identifier, Timestamp
from gangline_schemas.data_use import SnapshotName
from gangline_schemas.events.scheduling import CheckpointRef
from gangline_schemas.job import JobSpec, JobState
from gangline_schemas.limits import (
    Amount,
    Attempt,
    Cpus,
    GangSize,
    Label,
    Message,
    Month,
    Priority,
    RequestCeId,
    RequestCeSource,
    ShortText,
    Step,
    User,
)
from gangline_schemas.team_limits import TeamConfig


class JobAdmitted(Event):
    """The job may run as soon as there is room; the scheduler queues it."""

    type: ClassVar[str] = "job.admitted"
    job_id: Identifier
    spec: JobSpec
    user: User
    submitted_at: Timestamp
    note: Message | None = Field(
        default=None, description="Why it must wait first, as far as quota can tell."
    )
    start: CheckpointRef | None = Field(
        default=None, description="The checkpoint of a registered version to start from."
    )
    waits_since: Timestamp | None = Field(
        default=None, description="Of a job in the place of a withdrawn one: its age in the queue."
    )
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class JobRejected(Event):
    """The job can never run as submitted. `reason` is one sentence with numbers."""

    type: ClassVar[str] = "job.rejected"
    job_id: Identifier
    reason: Message
    errors: tuple[FieldError, ...] = Field(default=(), max_length=ERRORS_SHOWN)
    team: Label | None = None
    name: Label | None = None
    user: User = "unknown"
    submitted_at: Timestamp
    digest: str = Field(
        default="", max_length=64, description="sha256 of the spec, in hex; empty if unreadable."
    )
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class JobIdTaken(Event):
    """A checkpoint of the job is committed, and so one is kept: no other job ever gets its id."""

    type: ClassVar[str] = "job.id.taken"
    job_id: Identifier


class TeamConfigured(Event):
    """A team now has these limits."""

    type: ClassVar[str] = "team.configured"
    config: TeamConfig
    user: User = "unknown"
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class TeamBudgetChanged(Event):
    """A team's budget of the month is spent, or there is room again; written when that changes.

    The use of running gangs counts while they run. Running gangs are not stopped; the team and
    those below it start no new ones while `exhausted`.
    """

    type: ClassVar[str] = "team.budget.changed"
    team: Identifier
    month: Month
    exhausted: bool
    spent_gpu_hours: Amount = Field(description="By the team and those below it, this month.")
    gpu_hours_per_month: Amount | None = Field(
        default=None, description="The budget; none: it was taken away."
    )


class TeamCpuBudgetChanged(Event):
    """The same for the CPU-hours of jobs without GPUs: only these start no more."""

    type: ClassVar[str] = "team.cpu_budget.changed"
    team: Identifier
    month: Month
    exhausted: bool
    spent_cpu_hours: Amount = Field(description="By the team and those below it, this month.")
    cpu_hours_per_month: Amount | None = Field(
        default=None, description="The budget; none: it was taken away."
    )


class SnapshotApproved(Event):
    """Jobs of this project may use the snapshot for this purpose, from now on."""

    type: ClassVar[str] = "snapshot.approved"
    snapshot: SnapshotName
    project: Identifier
    purpose: ShortText
    user: User = "unknown"
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class SnapshotWithdrawn(Event):
    """No further jobs of this project may use it so; admitted jobs keep running."""

    type: ClassVar[str] = "snapshot.withdrawn"
    snapshot: SnapshotName
    project: Identifier
    purpose: ShortText
    user: User = "unknown"
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class CancelAdmitted(Event):
    """The cancel request is in order; it follows the job's admission in this log."""

    type: ClassVar[str] = "job.cancel.admitted"
    job_id: Identifier
    user: User
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class PriorityAdmitted(Event):
    """The change of priority is in order."""

    type: ClassVar[str] = "job.priority.admitted"
    job_id: Identifier
    priority: Priority
    user: User
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class RestoreAdmitted(Event):
    """The restore request is in order."""

    type: ClassVar[str] = "job.restore.admitted"
    job_id: Identifier
    step: Step
    user: User
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class PinAdmitted(Event):
    """The request to pin or unpin a checkpoint is in order."""

    type: ClassVar[str] = "checkpoint.pin.admitted"
    job_id: Identifier
    step: Step
    pinned: bool
    user: User
    attempt: Attempt | None = Field(
        default=None, description="That saved it; null: the newest that saved the step."
    )
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class DrainAdmitted(Event):
    """The drain request is in order."""

    type: ClassVar[str] = "node.drain.admitted"
    node_id: Identifier
    drain: bool
    move_jobs: bool = Field(default=True, description="As the request says.")
    reason: Message = Field(default="", description="As the request says.")
    user: User
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class RequestRefused(Event):
    """A request about a job or node that cannot be done, and why."""

    type: ClassVar[str] = "request.refused"
    request: Label = Field(description="The type of the refused request.")
    target: Label = Field(description="The job, team or node it was about.")
    reason: Message
    user: User = "unknown"
    request_id: RequestCeId = ""
    request_source: RequestCeSource = ""


class UsageCharged(Event):
    """GPU time of one attempt, charged when its gang was released; CPU time of one without GPUs.

    Exact is `gpus` (`cpus`) times the time from `allocated_at` to `released_at`; `gpu_seconds`
    (`cpu_seconds`) is the same as a float, for readers.
    """

    type: ClassVar[str] = "usage.charged"
    job_id: Identifier
    attempt: Attempt
    team: Identifier
    gpus: GangSize
    allocated_at: Timestamp
    released_at: Timestamp
    gpu_seconds: Amount
    cpus: Cpus | None = Field(default=None, description="Of all its ranks, of a job without GPUs.")
    cpu_seconds: Amount | None = Field(default=None, description="Of a job without GPUs.")


class GangMetered(Event):
    """The meter of one attempt starts: GPUs were allocated to it, or CPUs alone."""

    type: ClassVar[str] = "gang.metered"
    job_id: Identifier
    attempt: Attempt
    team: Identifier
    gpus: GangSize
    allocated_at: Timestamp
    cpus: Cpus | None = Field(default=None, description="Of all its ranks, of a job without GPUs.")


class JobClosed(Event):
    """The job ended: nothing can be asked of it any more, and its id stays taken."""

    type: ClassVar[str] = "job.closed"
    job_id: Identifier
    state: JobState
