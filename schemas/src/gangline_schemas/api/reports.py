"""Reports over a period. Shares are 0 to 1; null: there was nothing to measure."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from gangline_schemas.api.base import Answer


class ClusterUse(Answer):
    """All GPUs, of all teams. Means are over the period's time."""

    gpus_total: int = Field(description="GPUs of nodes that are up at the end.")
    gpus_allocated: int = Field(description="GPUs that are allocated to gangs at the end.")
    gpus_total_mean: float
    gpus_allocated_mean: float
    gpu_hours_total: float
    gpu_hours_allocated: float
    cpu_hours_allocated: float = Field(default=0.0, description="Of jobs without GPUs.")
    cost: float | None = Field(
        default=None, description="Of these GPU-hours; null: some GPUs have no price, or none ran."
    )
    utilization: float | None = Field(description="GPU-hours allocated of all; null: no GPU.")
    gpu_utilization: float | None = Field(
        description="How busy GPUs said to be, a mean over samples; null: none said it."
    )


class TeamUse(Answer):
    """One team with the teams below it. Limits are null for a team that was not configured."""

    team: str
    parent: str | None = Field(description="The team above it; rows without one add up to all.")
    gpu_limit: int | None
    gpu_guarantee: int | None
    borrow_limit: int | None
    gpus_allocated: int
    gpus_allocated_mean: float
    gpu_hours_allocated: float
    cpu_hours_allocated: float = Field(default=0.0, description="Of its jobs without GPUs.")
    cost: float | None = Field(default=None, description="Of these GPU-hours.")
    gpus_share: float = Field(
        description="Its share of the cluster: the guarantee, or without one the limit, at most "
        "the cluster's mean GPUs."
    )
    utilization: float | None = Field(
        description="GPU-hours allocated of the share's; above 1 when it borrows."
    )
    gpu_utilization: float | None = Field(description="Of its GPUs while it had them.")
    mfu: float | None = Field(description="The mean of the metric mfu over its steps.")
    gpus_pending: int = Field(description="GPUs that its jobs wait for at the end.")
    gpu_hours_pending: float = Field(description="GPUs asked for times the time waited.")
    gpus_by_part: list[float] = Field(
        default_factory=list,
        description="Mean GPUs of its gangs in each of `parts` equal parts of the period.",
    )


class UtilizationStep(Answer):
    """Means over one step of time."""

    since: datetime
    gpus_total: float = Field(description="GPUs of nodes that were up.")
    gpus_allocated: float = Field(description="Of these, GPUs that were allocated to gangs.")
    gpus_own: float = Field(description="Of these, the GPUs of teams that the caller sees.")


class UtilizationSteps(Answer):
    """The use of the GPUs over time, in steps of equal length."""

    since: datetime
    until: datetime
    steps: list[UtilizationStep]


class UtilizationReport(Answer):
    """The GPUs and waits of each team. Sums are over the teams that the caller sees."""

    since: datetime
    until: datetime
    cluster: ClusterUse
    teams: list[TeamUse]
    mfu: float | None
    gpus_pending: int
    gpu_hours_pending: float


class Waits(Answer):
    """Time from submission to the first gang, of jobs that got it in the week."""

    name: str = Field(description="The class, such as 2-8.")
    jobs: int
    p50_s: float | None
    p95_s: float | None
    waiting: int = Field(description="Jobs that had not started at the end.")


class UnusedQuota(Answer):
    """A team that used less than half of its guarantee on average."""

    team: str
    gpu_guarantee: int
    gpus_allocated_mean: float
    used: float = Field(description="Mean allocated GPUs of the guarantee.")


class LowMfu(Answer):
    """A job whose steps in the week had a mean mfu below 0.3."""

    job_id: str
    team: str
    name: str
    mfu: float
    gpu_hours: float = Field(description="Its allocated GPU-hours in the week.")


class Week(Answer):
    """The figures of one week."""

    since: datetime
    until: datetime
    cluster: ClusterUse
    mfu: float | None
    gpu_hours_pending: float
    jobs_submitted: int
    jobs_ended: int
    jobs_succeeded: int
    jobs_failed: int
    jobs_cancelled: int
    completion_rate: float | None = Field(description="Succeeded of ended; null: none ended.")
    wait: Waits
    wait_by_gpus: list[Waits]
    wait_by_priority: list[Waits]
    failures: int = Field(description="Gangs that failed.")
    repairs: int = Field(description="Failures after which the job ran again in the week.")
    mttr_s: float | None = Field(description="Mean time from a failure to running again.")
    preemptions: int
    preemption_gpu_hours: float = Field(
        description="GPU time that preemptions cost: to save, to do work again, to start again."
    )
    unused_quota: list[UnusedQuota]
    low_mfu: list[LowMfu] = Field(description="Those with the most GPU-hours, at most 100.")


class WeeklyReport(Answer):
    """A week and the one before it. Jobs and teams are those that the caller sees."""

    week: str | None = Field(description="The ISO week, such as 2026-W47; null: the last 7 days.")
    this: Week
    before: Week
