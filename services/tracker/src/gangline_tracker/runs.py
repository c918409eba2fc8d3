"""The row of one job in `runs`: a fold of the scheduling log. Pure.

A row's version is the offset of the last decision in it plus 1, and a decision at or before it
changes nothing, so a log may be read again from any earlier place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType

from gangline_schemas.base import Event
from gangline_schemas.events.quota import JobRejected
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    JobQueued,
    JobReprioritized,
    JobStateChanged,
    JobWaiting,
    NodeAdmitted,
)
from gangline_schemas.job import JobState

NO_MODELS: Mapping[str, str] = MappingProxyType({})
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
    gpu_model: str = ""
    """Of the newest attempt's GPUs; "" where its node's are not known."""
    gpu_model_seconds: Mapping[str, float] = field(default_factory=dict)
    """GPU-seconds by model; those of unknown models are in `gpu_seconds` alone."""
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


def evolve(
    run: Run, event: Event, offset: int, at: datetime, models: Mapping[str, str] = NO_MODELS
) -> Run:
    """The row after a decision at `offset` of its log; the same row when it holds that already.

    `models` are the models of nodes' GPUs.
    """
    if isinstance(event, JobRejected):
        return _rejected(run, event, at)
    if offset < run.version:
        return run
    changed = _changed(run, event, at, models)
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


def _changed(  # noqa: PLR0911 (one per event)
    run: Run, event: Event, at: datetime, models: Mapping[str, str]
) -> Run:
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
            model = models.get(event.nodes[0].node_id, "") if gpus else ""
            return replace(
                run, attempt=event.attempt, restarts=restarts, gpus=gpus, gpu_model=model
            )
        case GangReleased():
            return _charged(run, event.gpu_seconds)
        case JobStateChanged():
            started = run.started_at or (at if event.state is JobState.RUNNING else None)
            ended = at if event.state.terminal else None
            return replace(
                run, state=event.state.value, reason=event.reason, started_at=started,
                ended_at=ended,
            )  # fmt: skip
        case _:
            return run


def _charged(run: Run, gpu_seconds: float) -> Run:
    by_model = dict(run.gpu_model_seconds)
    if run.gpu_model:
        by_model[run.gpu_model] = by_model.get(run.gpu_model, 0.0) + gpu_seconds
    return replace(run, gpu_seconds=run.gpu_seconds + gpu_seconds, gpu_model_seconds=by_model)


def model_of(event: NodeAdmitted) -> str:
    """The model of a node's GPUs; of several the first one's; "" without GPUs."""
    return event.node.gpus[0].model if event.node.gpus else ""


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
