"""The platform at a past time, as the scheduler's log has it."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from gangline_schemas.api.base import Answer
from gangline_schemas.api.cluster import GpuMap, Queue
from gangline_schemas.api.jobs import Placed, Waiting


class HistoryRange(Answer):
    """The times that GET /v1/history/at accepts."""

    earliest: datetime | None = Field(description="Of the first decision; null: there is none.")
    newest: datetime = Field(description="Now.")


class JobAt(Answer):
    """A job that had not ended, as it was."""

    job_id: str
    name: str
    team: str
    project: str | None
    user: str
    state: str
    priority: int
    gpus: int = Field(description="That it asks for.")
    gpus_allocated: int
    attempt: int
    submitted_at: datetime
    allocated_at: datetime | None = Field(description="When its gang got its GPUs.")
    waiting: Waiting | None
    stopping: str | None = Field(description="Why its gang was asked to stop.")
    nodes: list[Placed]
    checkpoint_step: int | None = Field(
        description="The step of its newest checkpoint that is committed."
    )
    step: int | None = Field(
        default=None,
        description="Its newest step, of the history of metrics; null: none, or not asked for.",
    )


class PlatformAt(Answer):
    """Jobs, queue and GPUs at a time. Ended jobs are not part of it."""

    at: datetime
    events: int = Field(description="Decisions of the scheduler until then.")
    jobs: list[JobAt] = Field(
        description="Of the caller's teams: those with GPUs first, then by id."
    )
    jobs_all: int = Field(description="The caller's jobs, also those above the limit.")
    jobs_allocated: int = Field(description="Those of them that had GPUs.")
    queue: Queue
    gpus: GpuMap = Field(
        description="As of GET /v1/gpus, by the scheduler's log alone: without utilization, and "
        "without nodes that never joined."
    )
