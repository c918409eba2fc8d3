"""The changes that events of jobs make in their MLflow runs. Pure.

From the scheduler's log a run is made, and gets its state; from the fault manager's log it gets its
incidents. Changes of one job are put together, so that a batch writes each run once.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import get_args

from gangline_mlflow.job_usage import Allocated, NewPoint, Released
from gangline_schemas.base import Event
from gangline_schemas.events.faults import GangFailed
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    JobQueued,
    JobReprioritized,
    JobStateChanged,
    NodeAdmitted,
    ReleaseReason,
)
from gangline_schemas.job import JobSpec, JobState
from gangline_schemas.mlflow_workspace import ATTEMPT_TAG, JOB_TAG, experiment_of, trial_tags
from gangline_schemas.system_metrics import PLATFORM

_OfJob = JobQueued | JobReprioritized | JobStateChanged | GangAllocated | GangReleased | GangFailed
TAKEN: tuple[type[Event], ...] = (*get_args(_OfJob), NodeAdmitted)
"""The events that change something."""
RESTARTS, INCIDENTS = (PLATFORM + name for name in ("restarts", "incidents"))
_STATUS = {
    JobState.RUNNING: "RUNNING",
    JobState.CHECKPOINTING: "RUNNING",
    JobState.SUCCEEDED: "FINISHED",
    JobState.FAILED: "FAILED",
    JobState.CANCELLED: "KILLED",
}
"""MLflow's words; a job in any other state is SCHEDULED."""
_BETWEEN = ", "
_ENDED = {ReleaseReason.SUCCEEDED: "FINISHED"} | dict.fromkeys(
    (ReleaseReason.CANCELLED, ReleaseReason.PREEMPTED), "KILLED"
)


@dataclass(frozen=True, slots=True)
class NewRun:
    """The run of a job that was admitted."""

    team: str
    experiment: str
    user: str
    submitted_ms: int
    source: str
    params: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """Runs of this attempt that still run are ended with this status."""

    attempt: int
    status: str
    at_ms: int


@dataclass
class Change:
    """All that a batch of events changes in the run of one job."""

    new: NewRun | None = None
    status: tuple[str, int | None] | None = None
    """The status, and the end in Unix milliseconds."""
    tags: dict[str, str] = field(default_factory=dict)
    points: list[NewPoint] = field(default_factory=list)
    usage: list[Allocated | Released] = field(default_factory=list)
    ended: list[EndedAttempt] = field(default_factory=list)


Changes = dict[str, Change]
"""By job."""


def take(
    changes: Changes, gpu_models: MutableMapping[str, str], event: Event, at: datetime
) -> None:
    """Put an event of the time `at` in. `gpu_models` is by node."""
    if isinstance(event, NodeAdmitted):
        models = dict.fromkeys(gpu.model for gpu in event.node.gpus)
        gpu_models[event.node.node_id] = _BETWEEN.join(models)
        return
    if isinstance(event, _OfJob):
        _take(changes.setdefault(event.job_id, Change()), event, _ms(at), gpu_models)


def _take(change: Change, event: _OfJob, at_ms: int, gpu_models: Mapping[str, str]) -> None:
    match event:
        case JobQueued():
            change.new = _new_run(event)
            change.status = ("SCHEDULED", None)
            change.tags |= _tags(event.job_id, event.spec, event.user)
        case JobReprioritized():
            change.tags["gangline.priority"] = str(event.priority)
        case JobStateChanged():
            end_ms = at_ms if event.state.terminal else None
            change.status = (_STATUS.get(event.state, "SCHEDULED"), end_ms)
            change.tags |= {"gangline.state": event.state.value, "gangline.reason": event.reason}
        case GangAllocated():
            change.tags |= _gang_tags(event, gpu_models)
            restarts = float(event.attempt - 1)
            change.points.append(NewPoint(RESTARTS, event.attempt, at_ms, restarts))
            models = gpu_models.get(event.nodes[0].node_id, "")
            change.usage.append(Allocated(models.partition(_BETWEEN)[0]))
        case GangReleased():
            change.usage.append(Released(event.attempt, at_ms, event.gpu_seconds))
            status = _ENDED.get(event.reason, "FAILED")
            change.ended.append(EndedAttempt(event.attempt, status, at_ms))
        case GangFailed():
            incident = NewPoint(
                INCIDENTS, event.attempt, _ms(event.failed_at), float(event.failures)
            )
            change.points.append(incident)
            change.tags |= {
                "gangline.incident": event.failure_class.value,
                "gangline.incident.message": event.message,
            }


def _new_run(event: JobQueued) -> NewRun:
    spec = event.spec
    source = spec.run if spec.run is not None else shlex.join(spec.command)
    return NewRun(
        spec.team,
        experiment_of(spec),
        event.user,
        _ms(event.submitted_at),
        source,
        spec.parameters,
    )


def _tags(job_id: str, spec: JobSpec, user: str) -> dict[str, str]:
    resources = spec.resources
    found: dict[str, object] = {
        "mlflow.runName": job_id,
        "mlflow.user": user,
        "mlflow.source.type": "JOB",
        "mlflow.source.git.commit": spec.code_ref,
        JOB_TAG: job_id,
        ATTEMPT_TAG: 0,
        "gangline.name": spec.name,
        "gangline.team": spec.team,
        "gangline.project": spec.project,
        "gangline.state": JobState.PENDING.value,
        "gangline.priority": spec.priority,
        "gangline.gpus": resources.gpus,
        "gangline.gpu_type": ", ".join(resources.gpu_type),
        "gangline.code_bundle": spec.code_bundle,
        "gangline.code_diff": spec.without_diff().code_diff_digest,
        "gangline.image": spec.image,
        "gangline.data_snapshot": spec.data_snapshot,
        "gangline.purpose": spec.purpose,
        "gangline.seed": spec.seed,
        "gangline.strategy": spec.strategy,
        "gangline.resume_from": spec.resume_from,
    }
    given = {name: str(value) for name, value in found.items() if value not in {None, ""}}
    return given | trial_tags(spec)


def _gang_tags(event: GangAllocated, gpu_models: Mapping[str, str]) -> dict[str, str]:
    nodes = [node.node_id for node in event.nodes]
    used = [node.node_id for node in event.nodes if node.gpus]
    models = {gpu_models[node] for node in used if node in gpu_models}
    found = {
        ATTEMPT_TAG: str(event.attempt),
        "gangline.gpus": str(sum(len(node.gpus) for node in event.nodes)),
        "gangline.nodes": _BETWEEN.join(nodes),
    }
    return found | ({"gangline.gpu_type": _BETWEEN.join(sorted(models))} if models else {})


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
