"""Jobs: what is submitted, how it stands, why it waits."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field

from gangline_schemas.api.base import OPEN_WORD, OR_NONE, Answer, Body
from gangline_schemas.api.checkpoints import Checkpoint
from gangline_schemas.api.logs import LogLine
from gangline_schemas.base import FieldError
from gangline_schemas.job import JobSpec, JobState, WaitCode
from gangline_schemas.limits import Priority

KnownState = Literal[
    "pending", "scheduled", "initializing", "running", "checkpointing", "preempted",
    "succeeded", "failed", "cancelled", "rejected",
]  # fmt: skip
"""A job's state; `rejected` was never admitted."""
State = Annotated[KnownState, OPEN_WORD]
REJECTED = "rejected"
"""The state of a job that was refused admission; the scheduler never sees it."""
ENDED = frozenset({state.value for state in JobState if state.terminal} | {REJECTED})


class Waiting(Answer):
    """Why a pending job does not start."""

    code: str = Field(description=f"{', '.join(get_args(WaitCode))}.")
    message: str
    since: datetime


class Failure(Answer):
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


class Flag(Answer):
    """A block of data that the job leaves out, as it stayed damaged."""

    attempt: int
    rank: int = Field(description="The rank that met it first.")
    node_id: str
    snapshot: str
    shard: str
    block: int = Field(description="Counted from 0 in the shard.")
    reason: str
    flagged_at: datetime


class Stopping(Answer):
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
    waiting: Waiting | None
    priority: int
    gpus: int = Field(description="That it asks for; an elastic gang may have fewer.")
    gpus_allocated: int = Field(description="Allocated to its gang now; 0 while it has none.")
    cpus: float | None = Field(
        default=None, description="Of all its nodes, of a job without GPUs; null: it has GPUs."
    )
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
    tokens_per_s: float | None = Field(default=None, description="Mean of the last 30 seconds.")
    data_wait_share: float | None = Field(
        default=None, description="The share of its time that it waits for data, 0 to 1."
    )
    progress_at: datetime | None = Field(
        default=None, description="When step, loss and the other metrics were last known."
    )
    stalled_since: datetime | None = Field(
        default=None, description="It runs, but reported no step since then; null: steps come."
    )
    last_checkpoint: Checkpoint | None
    failure: Failure | None
    gpu_seconds: float = Field(description="Of attempts that have ended.")

    @property
    def ended(self) -> bool:
        """Whether its state will not change any more."""
        return self.state in ENDED


class Placed(Answer):
    """The job's ranks on one node."""

    node_id: str
    gpus: list[int]
    first_rank: int


class Rank(Answer):
    """One rank, as its agent said last."""

    rank: int
    node_id: str
    activity: str | None = Field(description="Its reported activity; null: it reports none.")
    step: int | None
    quiet_s: float = Field(description="Since it last ended a step or reported its activity.")


class Ranks(Answer):
    """The activities of a gang's ranks."""

    doing: dict[str, int] = Field(
        description="How many report starting, training, checkpointing, compiling, "
        "evaluating or waiting (for data); `running`: they report none."
    )
    quietest: Rank | None = Field(description="The rank whose last progress is the oldest.")


class RankRow(Answer):
    """One rank of a gang, as its node's agent reported last."""

    rank: int
    node_id: str
    gpu: int | None = Field(description="Its index on the node; null: a rank without a GPU.")
    status: str = Field(description="unseen, started, finished or stopped.")
    activity: str | None = Field(description="Its reported activity; null: it reports none.")
    step: int | None
    quiet_s: float | None = Field(
        description="Since it last ended a step or reported its activity; null: it never did."
    )
    busy_s: float | None = Field(
        description="The median work of its last steps, without waiting for other ranks."
    )
    trouble: str = Field(description="The last trouble of its training; empty: none.")
    gpu_utilization: float | None = Field(description="Percent.")
    last_line: LogLine | None = Field(default=None, description="Of its log.")


class RankList(Answer):
    """The ranks of a gang, in order."""

    attempt: int
    ranks: list[RankRow]
    cursor: int | None = Field(default=None, description="Continues after the last one.")


class Job(JobSummary):
    """One job with everything that is known of it."""

    metrics: dict[str, float] = Field(description="The newest value of each metric.")
    gpu_utilization: float | None = Field(description="Percent, mean over the gang's GPUs.")
    ranks: Ranks | None = Field(description="Of ranks with heartbeats; null: there are none.")
    running_gpu_seconds: float = Field(
        default=0.0, description="Of the GPUs that its gang has now, since it got them."
    )
    price_per_hour: float | None = Field(
        default=None,
        description="Of the GPUs that its gang has now, by the gateway's GPU_PRICES; null: it has "
        "none, or some model has no price.",
    )
    nodes: list[Placed]
    stopping: Stopping | None
    errors: list[FieldError] = Field(description="Why a submission was rejected, by field.")
    review: list[Flag] = Field(
        default_factory=list, description="For a person to review: damaged data that was left out."
    )
    image: str | None = Field(
        default=None,
        description="Its image by the digest that all attempts use, once a node has read its tag. "
        "Only in the answer about one job.",
    )
    spec: Annotated[JobSpec | None, OR_NONE] = Field(description="As submitted, without code_diff.")


class JobCounts(Answer):
    """How many jobs there are in each state."""

    total: int
    states: dict[str, int] = Field(description="States without a job are left out.")


class JobPage(Answer):
    """Jobs, by default the newest first."""

    jobs: list[JobSummary]
    cursor: str | None = Field(description="Give it to get the next page; null: no more.")


class DryRun(Answer):
    """The result of a submission that was only checked."""

    valid: Literal[True] = True
    job_id: str
    gpus: int
    notes: list[str] = Field(description="Reasons why the job would wait or be rejected now.")
    rejected: bool = Field(default=False, description="Whether it would be rejected now.")
    spec: JobSpec


class PriorityBody(Body):
    """A new priority."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"priority": 20}]})
    priority: Priority = Field(description="0 is the highest.")


class BundleStored(Answer):
    """A code bundle; give the digest as `code_bundle` in the job."""

    digest: str
    size_bytes: int
