"""What the gateway answers, as values. Fields that this version does not know are ignored.

docs/reference/rest.md is the contract. Times have zones, durations are seconds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

ENDED_STATES = frozenset({"succeeded", "failed", "cancelled", "rejected"})


class Answer(BaseModel):
    """A frozen value, tolerant of fields that a newer gateway adds."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Waiting(Answer):
    """Why a pending job does not start."""

    code: str
    message: str
    since: datetime | None = None


class Failure(Answer):
    """The newest failure of an attempt; `first_rank` failed first."""

    attempt: int
    cause: str
    action: str = ""
    message: str = ""
    first_rank: int | None = None
    node_id: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    restarts_used: int = 0
    restarts_max: int = 0
    failed_at: datetime | None = None


class Checkpoint(Answer):
    """One checkpoint: saved (on its nodes alone), committed, corrupted or deleted."""

    attempt: int
    step: int
    status: str
    committed_at: datetime
    tiers: list[str] = Field(default_factory=list)
    world_size: int = 0
    size_bytes: int = 0
    write_s: float = 0.0
    blocked_s: float = 0.0
    reason: str = ""
    whole_bytes: int | None = None
    refers: tuple[int, ...] = ()
    verify_s: float = 0.0
    scrubbed_at: datetime | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    kept: list[str] = Field(default_factory=list)
    promotion: str = ""
    promotion_run: str = ""
    promotion_reason: str = ""
    pinned: bool = False


class Stopping(Answer):
    """The gang was asked to stop and saves first."""

    reason: str
    deadline: datetime


class FieldProblem(Answer):
    """What is wrong with one field of a submission."""

    field: str
    message: str


class Flag(Answer):
    """A block of data that a job goes on without: a person shall look at it."""

    attempt: int
    rank: int
    node_id: str
    snapshot: str
    shard: str
    block: int
    reason: str
    flagged_at: datetime


class JobSummary(Answer):
    """One job as lists show it."""

    job_id: str
    name: str
    team: str
    state: str
    project: str | None = None
    user: str = ""
    reason: str = ""
    waiting: Waiting | None = None
    priority: int = 50
    gpus: int = 0
    gpus_held: int = 0
    attempt: int = 0
    restarts: int = 0
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    elapsed_s: float | None = None
    estimated_remaining_s: float | None = None
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    lr: float | None = None
    mfu: float | None = None
    last_checkpoint: Checkpoint | None = None
    failure: Failure | None = None
    gpu_seconds: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether its state will not change any more."""
        return self.state in ENDED_STATES


class Placed(Answer):
    """The job's ranks on one node."""

    node_id: str
    gpus: list[int]
    first_rank: int


class Rank(Answer):
    """One rank, as its agent said last; `quiet_s` since it ended a step or said what it does."""

    rank: int
    node_id: str
    activity: str | None = None
    step: int | None = None
    quiet_s: float = 0.0


class Ranks(Answer):
    """How many ranks say that they do what, and who got on the longest ago."""

    doing: dict[str, int] = Field(default_factory=dict)
    quietest: Rank | None = None


class Job(JobSummary):
    """One job with everything that is known of it."""

    metrics: dict[str, float] = Field(default_factory=dict)
    gpu_utilization: float | None = None
    ranks: Ranks | None = None
    nodes: list[Placed] = Field(default_factory=list)
    stopping: Stopping | None = None
    errors: list[FieldProblem] = Field(default_factory=list)
    review: list[Flag] = Field(default_factory=list)
    spec: dict[str, Any] | None = None


class JobPage(Answer):
    """Jobs, newest first."""

    jobs: list[JobSummary]
    cursor: str | None = None


class DryRun(Answer):
    """What a submission would be; `notes` say what would make it wait or be rejected now."""

    valid: bool = True
    job_id: str
    gpus: int
    notes: list[str] = Field(default_factory=list)
    rejected: bool = False
    spec: dict[str, Any] = Field(default_factory=dict)


class Explanation(Answer):
    """Why the job is where it is."""

    job_id: str
    state: str
    code: str
    message: str
    since: datetime | None = None
    evidence: dict[str, Any] = Field(default_factory=dict)
    eta: datetime | None = None
    eta_note: str = ""
    waits_for: JobExplained | None = None


class AheadJob(Answer):
    """A job that comes first; the id of another team's is not given."""

    job_id: str | None = None
    team: str | None = None
    gpus: int


class OrderParts(Answer):
    """The fair-share formula: priority + share_penalty - waiting_bonus = score."""

    priority: int
    share_penalty: float
    waiting_bonus: float
    score: float


class QuotaNumbers(Answer):
    """What the job's team holds, and may hold now."""

    held: int
    ceiling: int
    limit: int
    borrow_limit: int


class GpuNumbers(Answer):
    """GPUs wanted, free now, and of all usable nodes."""

    wanted: int
    fewest: int
    free: int
    total: int


class FreedFor(Answer):
    """GPUs that are being freed for the job."""

    reason: str
    nodes: list[str]
    victims: int
    until: datetime


class WaitError(Answer):
    """How far the first estimates of past jobs' starts were off, in seconds."""

    jobs: int
    median_s: float
    p90_s: float


class RuntimeMiss(Answer):
    """How far run times were off what the team's past jobs had said, as shares of it."""

    jobs: int
    median: float
    p90: float


class Outlook(Answer):
    """When and where a job will start: `eta_is` estimate or at_least; without, `eta_reason`."""

    eta: datetime | None = None
    eta_is: str = "estimate"
    eta_reason: str = ""
    nodes: list[str] = Field(default_factory=list)
    level: str | None = None
    wait_error: WaitError | None = None
    runtime_error: RuntimeMiss | None = None


class JobExplained(Answer):
    """What a pending job waits for, and until when."""

    job_id: str
    code: str
    message: str
    since: datetime
    position: int
    ahead: list[AheadJob] = Field(default_factory=list)
    ahead_gpus: int = 0
    order: OrderParts | None = None
    quota: QuotaNumbers | None = None
    gpus: GpuNumbers
    freed: FreedFor | None = None
    outlook: Outlook


class StartsOn(Answer):
    """GPUs of one node; `indexes` are not known while they are being freed."""

    node_id: str
    gpus: int
    indexes: list[int] = Field(default_factory=list)


class Victim(Answer):
    """A gang that would be stopped; the id of another team's is not given."""

    job_id: str | None = None
    team: str | None = None
    gpus: int
    deadline: datetime


class WhatIf(Answer):
    """What a job would do: `starts` now, after_preemption, later or never."""

    starts: str
    gpus: int
    start: datetime | None = None
    nodes: list[StartsOn] = Field(default_factory=list)
    level: str | None = None
    preempts: list[Victim] = Field(default_factory=list)
    cost_gpu_seconds: float = 0.0
    value_gpu_seconds: float = 0.0
    waiting: JobExplained | None = None
    message: str = ""
    notes: list[str] = Field(default_factory=list)


class LogLine(Answer):
    """One line of one rank; `line` counts from 0 in the attempt."""

    attempt: int
    rank: int
    line: int
    node_id: str = ""
    time: datetime
    stream: str
    text: str


class LogPage(Answer):
    """Lines in order of time."""

    lines: list[LogLine]
    cursor: str | None = None


class Advice(Answer):
    """The interval between checkpoints that follows from measured costs and failures."""

    attempt: int
    interval_s: float
    limited_by: str
    cost_s: float = 0.0
    busy_s: float = 0.0
    mtbf_s: float = 0.0
    failures: float = 0.0
    lost_s: float = 0.0
    reason: str = ""
    risk: str = ""
    advised_at: datetime | None = None


class CheckpointList(Answer):
    """A job's checkpoints, newest first, and the interval between them."""

    checkpoints: list[Checkpoint]
    cursor: str | None = None
    interval_s: float | None = None
    advice: Advice | None = None


class BusEvent(Answer):
    """One event of the bus with its CloudEvents attributes."""

    topic: str
    partition: int = 0
    offset: int = 0
    id: str = ""
    type: str
    source: str = ""
    subject: str = ""
    time: datetime
    data: dict[str, Any] = Field(default_factory=dict)


class EventPage(Answer):
    """Events in order; `cursor` continues after the last one."""

    events: list[BusEvent]
    cursor: str | None = None


class Restored(Answer):
    """Which run goes on from the checkpoint: the same one, or a new one for an ended run."""

    run_id: str
    step: int
    from_run: str = ""
    state: str = ""


class Point(Answer):
    """The steps first_step..step of a curve: their mean, lowest and highest value."""

    first_step: int
    step: int
    time: datetime
    value: float
    low: float
    high: float


class Curve(Answer):
    """One metric of one run; `last` is the value of its last step, where points are means."""

    run_id: str
    name: str
    points: list[Point]
    last: float | None = None


class Curves(Answer):
    """Curves over the same widths of steps."""

    curves: list[Curve]


class StepMetrics(Answer):
    """What a rank reported of one step; of history the attempt and the rank are not known."""

    step: int
    time_ms: int
    metrics: dict[str, float]
    attempt: int | None = None
    rank: int | None = None


class Run(Answer):
    """One run from history."""

    run_id: str
    team: str
    name: str
    state: str
    project: str = ""
    user: str = ""
    reason: str = ""
    attempt: int = 0
    restarts: int = 0
    gpus: int = 0
    priority: int = 50
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    gpu_seconds: float = 0.0
    strategy: str = ""
    code_ref: str = ""
    data_snapshot: str = ""
    hyperparameters: dict[str, str] = Field(default_factory=dict)


class RunPage(Answer):
    """Runs, newest first."""

    runs: list[Run]
    cursor: str | None = None


class Difference(Answer):
    """A field of the configuration that is not the same in all runs."""

    field: str
    values: dict[str, Any]


class Final(Answer):
    """A metric at its last step, and its extremes."""

    step: int
    value: float
    low: float
    high: float


class Comparison(Answer):
    """Runs side by side; `metrics` by name, then by run."""

    runs: list[Run]
    differences: list[Difference] = Field(default_factory=list)
    metrics: dict[str, dict[str, Final]] = Field(default_factory=dict)
    curves: list[Curve] = Field(default_factory=list)


class GpuTypeLimit(Answer):
    """A GPU model that a team may use, and how many of it at once (None: as its other limits)."""

    gpu_type: str
    gpu_limit: int | None = None


class Team(Answer):
    """A team's limits, and its use together with that of all teams below it."""

    team: str
    parent: str | None = None
    gpu_limit: int
    gpu_guarantee: int = 0
    borrow_limit: int = 0
    weight: float = 1.0
    surplus: str | None = None
    gpu_types: list[GpuTypeLimit] = Field(default_factory=list)
    gpu_hours_per_month: float | None = None
    job_limit: int = 10_000
    gpus_used: int = 0
    gpus_borrowed: int = 0
    jobs_running: int = 0
    jobs_pending: int = 0
    gpu_seconds: float = 0.0
    month: str = ""
    gpu_hours_this_month: float = 0.0
    out_of_budget: bool = False


class TeamList(Answer):
    """Teams that the caller sees."""

    teams: list[Team]


class NodeGpu(Answer):
    """One GPU, or one CPU slot."""

    index: int
    model: str = ""
    memory_gb: float = 0.0
    utilization: float | None = None
    memory_used_gb: float | None = None
    temperature_c: float | None = None


class Node(Answer):
    """One node: ready, suspected, failed, draining, cordoned, leaving, superseded or unfit."""

    node_id: str
    status: str
    why: str = ""
    straggler: str = ""
    incarnation: str = ""
    hostname: str = ""
    rack: str = ""
    block: str = ""
    isolation: str = "none"
    cpus: float = 0.0
    memory_gb: float = 0.0
    gpus: list[NodeGpu] = Field(default_factory=list)
    gpus_used: int = 0
    jobs: list[str] = Field(default_factory=list)
    last_heartbeat: datetime | None = None
    cpu_percent: float | None = None
    memory_used_gb: float | None = None


class NodeList(Answer):
    """Nodes, by id; `cursor` continues after the last one."""

    nodes: list[Node]
    cursor: str | None = None


class Drained(Answer):
    """The node's status after the request."""

    node_id: str
    status: str


class QueueEntry(Answer):
    """One pending job; the lowest score starts first."""

    position: int
    job_id: str
    name: str = ""
    team: str
    user: str = ""
    priority: int = 50
    gpus: int = 0
    score: float = 0.0
    waiting_since: datetime | None = None
    waited_s: float = 0.0
    waiting: Waiting | None = None


class Queue(Answer):
    """Pending jobs in fair-share order; positions count other teams' jobs too."""

    queue: list[QueueEntry]
    cursor: int | None = None
    pending_jobs: int = 0
    pending_gpus: int = 0


class BundleStored(Answer):
    """A packed workdir in the store."""

    digest: str
    size_bytes: int = 0


class Whoami(Answer):
    """Whose token it is."""

    name: str
    role: str
    teams: list[str] = Field(default_factory=list)


class Version(Answer):
    """What answers."""

    version: str
    api: str = ""
