"""What the gateway answers: the response models of all routes. Times are UTC, durations seconds."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from gangline_schemas.base import FieldError, Identifier
from gangline_schemas.isolation import Isolation
from gangline_schemas.job import GpuTypeLimit, JobSpec, Surplus, TeamConfig
from gangline_schemas.questions import JobExplained, WhatIfAnswer

State = Literal[
    "pending", "scheduled", "initializing", "running", "checkpointing", "preempted",
    "succeeded", "failed", "cancelled", "rejected",
]  # fmt: skip
"""A job's state; `rejected` was never admitted."""


class Answer(BaseModel):
    """The base of all answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class WaitingAnswer(Answer):
    """Why a pending job does not start."""

    code: str = Field(description="capacity, quota, order, shape, topology or gpu_type.")
    message: str
    since: datetime


class FailureAnswer(Answer):
    """The newest failure of an attempt."""

    attempt: int
    cause: str
    action: str = Field(description="restart or fail")
    message: str
    first_rank: int | None = Field(description="The rank that failed first.")
    node_id: str | None
    exit_code: int | None
    signal: int | None
    restarts_used: int
    restarts_max: int
    failed_at: datetime


class FlagAnswer(Answer):
    """A block of data that the job goes on without, as it stayed damaged."""

    attempt: int
    rank: int = Field(description="Who met it first.")
    node_id: str
    snapshot: str
    shard: str
    block: int = Field(description="Counted from 0 in the shard.")
    reason: str
    flagged_at: datetime


class CheckpointAnswer(Answer):
    """One checkpoint."""

    attempt: int
    step: int
    status: str = Field(
        description="saved: whole on its gang's nodes, on its way to the store; committed, "
        "corrupted or deleted."
    )
    committed_at: datetime = Field(description="Since when it counts: where it is, if only saved.")
    tiers: list[str] = Field(
        default_factory=list,
        description="Where it lies: nodes (on the disks of its gang's nodes), store.",
    )
    world_size: int
    size_bytes: int = Field(description="Of the objects that were written for it.")
    write_s: float
    blocked_s: float
    reason: str = Field(
        default="", description="Why it is corrupted or deleted, or only saved: the store is away."
    )
    whole_bytes: int | None = Field(
        default=None, description="What a whole one would take, if some of it lies in earlier ones."
    )
    refers: tuple[int, ...] = Field(
        default=(), description="Earlier steps of its attempt in which some of its bytes lie."
    )
    verify_s: float = Field(default=0.0, description="Reading it back before it counted.")
    scrubbed_at: datetime | None = Field(
        default=None, description="When all its bytes were last read again and found right."
    )
    metrics: dict[str, float] = Field(default_factory=dict)
    kept: list[str] = Field(
        default_factory=list,
        description="Why it is not deleted: latest, best, every, promoted, pinned, needed, "
        "in use. Empty: it may go.",
    )
    promotion: str = Field(
        default="", description="asked, promoted or refused; empty: no run was to validate it."
    )
    promotion_run: str = Field(default="", description="The run that validates it.")
    promotion_reason: str = Field(default="", description="Why it was refused.")
    pinned: bool = Field(default=False, description="A user wants it kept.")


class StoppingAnswer(Answer):
    """The gang was asked to stop and saves a checkpoint first."""

    reason: str
    deadline: datetime


class JobSummary(Answer):
    """One job as lists show it."""

    job_id: str
    name: str
    team: str
    project: str | None
    user: str
    state: State
    reason: str
    waiting: WaitingAnswer | None
    priority: int
    gpus: int = Field(description="That it asks for; an elastic gang may have fewer.")
    gpus_held: int = Field(description="That its gang holds now; 0 while it has none.")
    attempt: int
    restarts: int
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    elapsed_s: float | None = Field(description="Since the first rank group ran.")
    estimated_remaining_s: float | None
    step: int | None
    total_steps: int | None
    loss: float | None
    lr: float | None
    mfu: float | None
    last_checkpoint: CheckpointAnswer | None
    failure: FailureAnswer | None
    gpu_seconds: float = Field(description="Of attempts that have ended.")


class PlacedAnswer(Answer):
    """The job's ranks on one node."""

    node_id: str
    gpus: list[int]
    first_rank: int


class RankAnswer(Answer):
    """One rank, as its agent said last."""

    rank: int
    node_id: str
    activity: str | None = Field(description="What it says that it does; null: it does not say.")
    step: int | None
    quiet_s: float = Field(description="Since it last ended a step or said what it does.")


class RanksAnswer(Answer):
    """What the ranks of a gang do."""

    doing: dict[str, int] = Field(
        description="How many say that they are starting, training, checkpointing, compiling, "
        "evaluating or waiting (for data); `running`: they do not say."
    )
    quietest: RankAnswer | None = Field(description="Who got on the longest ago.")


class Job(JobSummary):
    """One job with everything that is known of it."""

    metrics: dict[str, float] = Field(description="The newest value of each metric.")
    gpu_utilization: float | None = Field(description="Percent, mean over the gang's GPUs.")
    ranks: RanksAnswer | None = Field(description="Of those that were heard; null: none was.")
    nodes: list[PlacedAnswer]
    stopping: StoppingAnswer | None
    errors: list[FieldError] = Field(description="Why a submission was rejected, by field.")
    review: list[FlagAnswer] = Field(
        default_factory=list, description="What a person shall look at: damaged data left out."
    )
    spec: JobSpec | None = Field(description="As submitted, without code_diff.")


class JobPage(Answer):
    """Jobs, newest first."""

    jobs: list[JobSummary]
    cursor: str | None = Field(description="Give it to get the next page; null: no more.")


class DryRun(Answer):
    """What a submission would have been."""

    valid: Literal[True] = True
    job_id: str
    gpus: int
    notes: list[str] = Field(description="What would make the job wait or be rejected now.")
    rejected: bool = Field(default=False, description="Whether it would be rejected now.")
    spec: JobSpec


class PinBody(BaseModel):
    """Whether a checkpoint is kept until it is unpinned."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"pinned": True}]})
    pinned: bool


class PriorityBody(BaseModel):
    """A new priority."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"priority": 20}]})
    priority: int = Field(ge=0, le=100, description="0 is the highest.")


class Explanation(Answer):
    """Why the job is where it is: one reason, its evidence, the next step."""

    job_id: str
    state: State
    code: str
    message: str
    since: datetime | None
    evidence: dict[str, JsonValue]
    eta: datetime | None = Field(default=None, description="When a job that waits will start.")
    eta_note: str = Field(default="", description="What the ETA is, or why there is none.")
    waits_for: JobExplained | None = Field(
        default=None, description="What a pending job waits for; null when it does not wait."
    )


class WhatIf(WhatIfAnswer):
    """What would happen to this job if it were submitted now; nothing was changed."""

    notes: tuple[str, ...] = Field(default=(), description="What its team's quota says to it.")


class LogLineAnswer(Answer):
    """One line of one rank; `line` counts from 0 in the attempt."""

    attempt: int
    rank: int
    line: int
    node_id: str
    time: datetime
    stream: str
    text: str


class LogPageAnswer(Answer):
    """Lines in order of time."""

    lines: list[LogLineAnswer]
    cursor: str | None


class AdviceAnswer(Answer):
    """The interval that follows from measured costs and failures; see concepts/checkpoints.md."""

    attempt: int
    interval_s: float
    limited_by: str = Field(description="optimum, ceiling, floor or storage.")
    cost_s: float = Field(description="What one save costs training.")
    busy_s: float = Field(description="How long one save keeps the store busy.")
    mtbf_s: float = Field(description="Expected time between failures of this gang.")
    failures: float
    lost_s: float = Field(description="Work that a failure is expected to cost.")
    reason: str
    risk: str = Field(description="What is put at risk by saving less often; mostly empty.")
    advised_at: datetime


class CheckpointList(Answer):
    """A job's checkpoints, newest first."""

    checkpoints: list[CheckpointAnswer]
    cursor: str | None = None
    interval_s: float | None = Field(default=None, description="How often it saves now.")
    advice: AdviceAnswer | None = None


class EventAnswer(Answer):
    """One event of the bus with its CloudEvents attributes."""

    topic: str
    partition: int
    offset: int
    id: str
    type: str
    source: str
    subject: str
    time: datetime
    data: dict[str, Any]


class EventPage(Answer):
    """Events in order; `cursor` continues after the last one."""

    events: list[EventAnswer]
    cursor: str | None


class RunCreated(Answer):
    """The run that a submission started."""

    run_id: str
    state: State


class Restored(Answer):
    """Which run goes on from the checkpoint: the same one, or a new one for an ended run."""

    run_id: str
    step: int
    from_run: str
    state: State


class PointAnswer(Answer):
    """The steps first_step..step of a curve."""

    first_step: int
    step: int
    time: datetime
    value: float
    low: float
    high: float


class CurveAnswer(Answer):
    """One metric of one run; `last` is the value of its last step, where points are means."""

    run_id: str
    name: str
    points: list[PointAnswer]
    last: float | None = None


class Curves(Answer):
    """Curves over the same widths of steps."""

    curves: list[CurveAnswer]


class Run(Answer):
    """One run from history."""

    run_id: str
    team: str
    project: str
    name: str
    user: str
    state: str
    reason: str
    attempt: int
    restarts: int
    gpus: int
    priority: int
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    gpu_seconds: float
    strategy: str
    code_ref: str
    data_snapshot: str
    hyperparameters: dict[str, str]


class RunPageAnswer(Answer):
    """Runs, newest first."""

    runs: list[Run]
    cursor: str | None


class DifferenceAnswer(Answer):
    """A field of the configuration that is not the same in all runs."""

    field: str
    values: dict[str, JsonValue] = Field(description="By run; null where it is unset.")


class FinalAnswer(Answer):
    """A metric at its last step."""

    step: int
    value: float
    low: float
    high: float


class ComparisonAnswer(Answer):
    """Runs side by side."""

    runs: list[Run]
    differences: list[DifferenceAnswer]
    metrics: dict[str, dict[str, FinalAnswer]] = Field(description="By name, then by run.")
    curves: list[CurveAnswer]


class Team(Answer):
    """A team's limits, and its use together with that of all teams below it."""

    team: str
    parent: str | None
    depth: int = Field(description="0 at a root of the tree.")
    gpu_limit: int
    gpu_guarantee: int
    borrow_limit: int
    weight: float
    surplus: Surplus | None = Field(description="None: as its parent's.")
    gpu_types: list[GpuTypeLimit] = Field(description="Empty: what its parent may use.")
    gpu_hours_per_month: float | None
    job_limit: int = Field(description="Jobs that have not ended, at once.")
    gpus_used: int
    gpus_borrowed: int = Field(description="Above its limit.")
    jobs_running: int
    jobs_pending: int
    gpu_seconds: float = Field(description="Of all gangs that gave their GPUs back.")
    month: str = Field(description="The UTC month, like 2026-11.")
    gpu_hours_this_month: float = Field(description="Live gangs count up to now.")
    out_of_budget: bool = Field(description="No new gang starts before the next month.")


class TeamList(Answer):
    """Teams that the caller sees."""

    teams: list[Team]


class TeamBody(BaseModel):
    """A team's limits, all of them: what is left out is as at its default."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"gpu_limit": 64, "gpu_guarantee": 32, "borrow_limit": 16}]
        },
    )
    gpu_limit: int = Field(ge=0, le=1_000_000, description="GPUs the team may hold at once.")
    gpu_guarantee: int = Field(default=0, ge=0, le=1_000_000)
    borrow_limit: int = Field(default=0, ge=0, le=1_000_000)
    parent: Identifier | None = Field(default=None, description="The team above it.")
    weight: float = Field(default=1.0, ge=0, le=1e6)
    surplus: Surplus | None = None
    gpu_types: list[GpuTypeLimit] = Field(default=[], max_length=64)
    gpu_hours_per_month: float | None = Field(default=None, gt=0, le=1e9)
    job_limit: int = Field(default=10_000, ge=1, le=1_000_000)

    def config(self, team: str) -> TeamConfig:
        """As the bus has it. Raises ValidationError."""
        return TeamConfig(team=team, **self.model_dump())


class NodeGpu(Answer):
    """One GPU; what it does as of the last heartbeat."""

    index: int
    model: str
    memory_gb: float
    utilization: float | None
    memory_used_gb: float | None
    temperature_c: float | None


class Node(Answer):
    """One node."""

    node_id: str
    status: str = Field(
        description="ready, suspected, failed, draining, cordoned, leaving, superseded or unfit"
    )
    why: str = Field(default="", description="Why it is cordoned or unfit, where that is known.")
    straggler: str = Field(
        default="", description="What was said of a slow rank there, while its gang runs."
    )
    incarnation: str
    hostname: str
    rack: str
    block: str
    isolation: Isolation = Field(
        default=Isolation.NONE, description="How well its agent keeps teams apart."
    )
    cpus: float
    memory_gb: float
    gpus: list[NodeGpu]
    gpus_used: int
    jobs: list[str] = Field(description="Jobs of the caller's teams that run there.")
    last_heartbeat: datetime | None
    cpu_percent: float | None
    memory_used_gb: float | None


class NodeList(Answer):
    """Nodes, by id."""

    nodes: list[Node]
    cursor: str | None = Field(default=None, description="Continues after the last one.")


class DrainBody(BaseModel):
    """Whether gangs shall be kept off the node, and whether those there shall go elsewhere."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"drain": True}]})
    drain: bool
    move_jobs: bool = Field(
        default=True, description="Gangs there go on elsewhere; else they run on (a cordon)."
    )


class Drained(Answer):
    """The node's status after the request."""

    node_id: str
    status: str


class QueueEntry(Answer):
    """One pending job. `score` is the fair-share formula's, lowest first."""

    position: int
    job_id: str
    name: str
    team: str
    user: str
    priority: int
    gpus: int
    score: float
    waiting_since: datetime | None
    waited_s: float
    waiting: WaitingAnswer | None


class Queue(Answer):
    """Pending jobs in fair-share order; positions count other teams' jobs too."""

    queue: list[QueueEntry]
    cursor: int | None = Field(default=None, description="Continues after the last one.")
    pending_jobs: int
    pending_gpus: int


class BundleStored(Answer):
    """A code bundle; give the digest as `code_bundle` in the job."""

    digest: str
    size_bytes: int


class Whoami(Answer):
    """Whose token it is."""

    name: str
    role: str
    teams: list[str]


class Version(Answer):
    """What answers."""

    version: str
    api: str
