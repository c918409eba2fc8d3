"""The row of one job in `runs`: a fold of the scheduling log. Pure.

A row's version is the offset of the last decision in it plus 1, and a decision at or before it
changes nothing, so a log may be read again from any earlier place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from gangline_schemas.base import Event
from gangline_schemas.events.quota import JobRejected
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    JobQueued,
    JobReprioritized,
    JobStateChanged,
    JobWaiting,
)
from gangline_schemas.job import JobState

REJECTED = "rejected"
"""The state of a job that was refused admission; the scheduler never sees it."""


@dataclass(frozen=True, slots=True)
class Run:
    """One job, as lists and comparisons show it. `version` 0: nothing is known yet."""

    job_id: str
    team: str = ""
    project: str = ""
    name: str = ""
    user: str = ""
    state: str = JobState.PENDING
    reason: str = ""
    attempt: int = 0
    restarts: int = 0
    gpus: int = 0
    priority: int = 0
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    gpu_seconds: float = 0.0
    strategy: str = ""
    code_ref: str = ""
    data_snapshot: str = ""
    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    spec: str = "{}"
    version: int = 0

    @property
    def terminal(self) -> bool:
        """Whether no further decision is expected."""
        return self.ended_at is not None


def job_of(event: Event) -> str | None:
    """The job whose row an event may change; None if it changes no row."""
    kinds = (
        JobQueued, JobWaiting, JobStateChanged, JobReprioritized, GangAllocated, GangReleased,
        JobRejected,
    )  # fmt: skip
    return event.job_id if isinstance(event, kinds) else None


def evolve(run: Run, event: Event, offset: int, at: datetime) -> Run:
    """The row after a decision at `offset` of its log; the same row when it holds that already."""
    if isinstance(event, JobRejected):
        return _rejected(run, event, at)
    if offset < run.version:
        return run
    changed = _changed(run, event, at)
    return replace(changed, version=offset + 1)


def _rejected(run: Run, event: JobRejected, at: datetime) -> Run:
    if run.version:
        return run  # queued under the same id: the scheduling log is what counts
    return replace(
        run,
        team=event.team or "",
        name=event.name or "",
        user=event.user,
        state=REJECTED,
        reason=event.reason,
        submitted_at=event.submitted_at,
        ended_at=at,
    )


def _changed(run: Run, event: Event, at: datetime) -> Run:  # noqa: PLR0911 (one per event)
    match event:
        case JobQueued():
            return _described(run, event)
        case JobWaiting():
            return replace(run, reason=event.message)
        case JobReprioritized():
            return replace(run, priority=event.priority)
        case GangAllocated():
            gpus = sum(len(node.gpus) for node in event.nodes)
            restarts = max(run.restarts, event.attempt - 1)
            return replace(run, attempt=event.attempt, restarts=restarts, gpus=gpus)
        case GangReleased():
            return replace(run, gpu_seconds=run.gpu_seconds + event.gpu_seconds)
        case JobStateChanged():
            started = run.started_at or (at if event.state is JobState.RUNNING else None)
            ended = at if event.state.terminal else None
            return replace(
                run, state=event.state.value, reason=event.reason, started_at=started,
                ended_at=ended,
            )  # fmt: skip
        case _:
            return run


def _described(run: Run, event: JobQueued) -> Run:
    spec = event.spec
    return replace(
        run,
        team=spec.team,
        project=spec.project or "",
        name=spec.name,
        user=event.user,
        state=JobState.PENDING.value,
        reason="",
        gpus=spec.resources.gpus,
        priority=spec.priority,
        submitted_at=event.submitted_at,
        ended_at=None,
        strategy=spec.strategy,
        code_ref=spec.code_ref or "",
        data_snapshot=spec.data_snapshot or "",
        hyperparameters=spec.parameters,
        spec=spec.without_diff().encode().decode(),
    )
