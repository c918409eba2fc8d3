"""Incidents as the gateway gives them. docs/concepts/faults.md says what the fields mean."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from gangline.api_models import Answer


class Incident(Answer):
    """One failure; `outcome` is open until its job has recovered or ended."""

    team: str = ""
    job_id: str
    attempt: int
    outcome: str
    failure_class: str
    cause: str
    action: str
    message: str
    first_rank: int | None = None
    node_id: str = ""
    avoid_nodes: list[str] = Field(default_factory=list)
    review: bool = False
    failures: int = 1
    world_size: int = 0
    last_step: int | None = None
    committed_step: int | None = None
    resume_step: int | None = None
    failed_at: datetime
    next_attempt: int | None = None
    allocated_at: datetime | None = None
    running_at: datetime | None = None
    first_step_at: datetime | None = None
    closed_at: datetime | None = None
    recover_s: float | None = None
    work_lost_s: float = 0.0
    down_s: float = 0.0
    lost_gpu_s: float = 0.0


class Share(Answer):
    """The incidents of one class, node or job, or what was left out of one shard of data."""

    name: str
    incidents: int
    lost_gpu_s: float = 0.0


class Totals(Answer):
    """All incidents that the filters accept, also those that are not listed."""

    incidents: int = 0
    recovered: int = 0
    recover_median_s: float | None = None
    recover_p95_s: float | None = None
    lost_gpu_s: float = 0.0
    by_class: list[Share] = Field(default_factory=list)
    by_node: list[Share] = Field(default_factory=list)
    by_job: list[Share] = Field(default_factory=list)
    by_shard: list[Share] = Field(default_factory=list)


class Notice(Answer):
    """What was noticed of an attempt that went on: straggling, loss_spike or not_finite."""

    team: str = ""
    job_id: str
    attempt: int
    kind: str
    rank: int
    node_id: str = ""
    message: str
    noted_at: datetime


class IncidentPage(Answer):
    """Incidents, newest first."""

    incidents: list[Incident]
    totals: Totals
    notices: list[Notice] = Field(default_factory=list)
    cursor: str | None = None


class Stacks(Answer):
    """What one rank of a gang that hung was doing."""

    rank: int
    node_id: str
    pid: int
    state: str
    last_step: int | None = None
    stacks: str = ""
    missing: str | None = None


class IncidentDetail(Answer):
    """One failure, and the stacks of its ranks if it was a hang."""

    incident: Incident
    stacks: list[Stacks]
