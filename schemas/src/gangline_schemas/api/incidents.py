"""Incidents: what failed, what it cost, and when it was over."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from gangline_schemas.api.base import Answer


class Incident(Answer):
    """One failure, from its verdict to the first step after it."""

    team: str
    job_id: str
    attempt: int = Field(description="The one that failed.")
    outcome: str = Field(description="open, recovered, failed_again, job_failed or job_ended.")
    failure_class: str = Field(
        description="The kind of failure; docs/runbooks has a page for each."
    )
    cause: str
    action: str = Field(description="restart or fail")
    message: str
    first_rank: int | None = Field(description="The rank that failed first.")
    node_id: str
    avoid_nodes: list[str]
    review: bool = Field(description="A person must review it: bad data.")
    failures: int = Field(description="Of this job up to this one.")
    world_size: int
    last_step: int | None
    committed_step: int | None = Field(description="Of the last checkpoint before the failure.")
    resume_step: int | None = Field(description="Where the next attempt began.")
    failed_at: datetime
    next_attempt: int | None
    allocated_at: datetime | None = Field(description="The next attempt had its GPUs.")
    running_at: datetime | None = Field(description="All its ranks ran.")
    first_step_at: datetime | None = Field(description="Its first step, to about a second.")
    closed_at: datetime | None
    recover_s: float | None = Field(description="From the failure to the first step.")
    work_lost_s: float = Field(description="Training since the last checkpoint.")
    down_s: float
    lost_gpu_s: float = Field(description="(work_lost_s + down_s) x world_size.")


class Share(Answer):
    """The incidents of one class, node or job, or what was left out of one shard of data."""

    name: str
    incidents: int
    lost_gpu_s: float


class Totals(Answer):
    """All incidents that the filters accept, whatever the page."""

    incidents: int
    recovered: int
    recover_median_s: float | None
    recover_p95_s: float | None
    lost_gpu_s: float
    by_class: list[Share]
    by_node: list[Share]
    by_job: list[Share]
    by_shard: list[Share] = Field(description="Shards of data: how many blocks jobs left out.")


class Notice(Answer):
    """A notice of an attempt that kept running."""

    team: str
    job_id: str
    attempt: int
    kind: str = Field(description="straggling, loss_spike or not_finite.")
    rank: int
    node_id: str
    message: str
    noted_at: datetime


class IncidentPage(Answer):
    """Incidents, newest first."""

    incidents: list[Incident]
    totals: Totals
    notices: list[Notice] = Field(description="The newest 20; none after the first page.")
    cursor: str | None


class Stacks(Answer):
    """The stacks of one rank of a hung gang."""

    rank: int
    node_id: str
    pid: int
    state: str = Field(description="Of its process: running, sleeping, stopped, ...")
    last_step: int | None
    stacks: str = Field(description="Of each thread, the innermost call first.")
    missing: str | None = Field(description="Why there are no stacks, or not all of them.")


class IncidentDetail(Answer):
    """One failure, and the stacks of its ranks if it was a hang."""

    incident: Incident
    stacks: list[Stacks]
