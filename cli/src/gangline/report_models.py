"""Reports as the gateway gives them. Shares are 0 to 1, None: there was nothing to measure."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from gangline.api_models import Answer


class ClusterUse(Answer):
    """All GPUs, at the end of the period and as means over its time."""

    gpus_total: int = 0
    gpus_allocated: int = 0
    gpus_total_mean: float = 0.0
    gpus_allocated_mean: float = 0.0
    gpu_hours_total: float = 0.0
    gpu_hours_allocated: float = 0.0
    utilization: float | None = None
    gpu_utilization: float | None = None


class TeamUse(Answer):
    """One team with those below it; without limits when it was not configured."""

    team: str
    parent: str | None = None
    gpu_limit: int | None = None
    gpu_guarantee: int | None = None
    borrow_limit: int | None = None
    gpus_allocated: int = 0
    gpus_allocated_mean: float = 0.0
    gpu_hours_allocated: float = 0.0
    gpus_share: float = 0.0
    utilization: float | None = None
    gpu_utilization: float | None = None
    mfu: float | None = None
    gpus_pending: int = 0
    gpu_hours_pending: float = 0.0


class UtilizationReport(Answer):
    """Who held the GPUs and who waited."""

    since: datetime
    until: datetime
    cluster: ClusterUse
    teams: list[TeamUse]
    mfu: float | None = None
    gpus_pending: int = 0
    gpu_hours_pending: float = 0.0


class Waits(Answer):
    """Time from submission to the first gang, of one class of jobs."""

    name: str
    jobs: int = 0
    p50_s: float | None = None
    p95_s: float | None = None
    waiting: int = 0


class UnusedQuota(Answer):
    """A team that held less than half of its guarantee on average."""

    team: str
    gpu_guarantee: int
    gpus_allocated_mean: float
    used: float


class LowMfu(Answer):
    """A job whose mean mfu was low."""

    job_id: str
    team: str
    name: str = ""
    mfu: float
    gpu_hours: float = 0.0


class Week(Answer):
    """The figures of one week."""

    since: datetime
    until: datetime
    cluster: ClusterUse
    wait: Waits
    mfu: float | None = None
    gpu_hours_pending: float = 0.0
    jobs_submitted: int = 0
    jobs_ended: int = 0
    jobs_succeeded: int = 0
    jobs_failed: int = 0
    jobs_cancelled: int = 0
    completion_rate: float | None = None
    wait_by_gpus: list[Waits] = Field(default_factory=list)
    wait_by_priority: list[Waits] = Field(default_factory=list)
    failures: int = 0
    repairs: int = 0
    mttr_s: float | None = None
    preemptions: int = 0
    preemption_gpu_hours: float = 0.0
    unused_quota: list[UnusedQuota] = Field(default_factory=list)
    low_mfu: list[LowMfu] = Field(default_factory=list)


class WeeklyReport(Answer):
    """A week and the one before it."""

    week: str | None = None
    this: Week
    before: Week
