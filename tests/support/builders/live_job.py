"""Events of one job on one node, and what the gateway's live model shows of them."""

from __future__ import annotations

from datetime import timedelta

from gangline_gateway import present
from gangline_gateway.live_model import JobDetails, LiveNode
from gangline_schemas.api.cluster import Node
from gangline_schemas.events.checkpoints import CheckpointCommitted
from gangline_schemas.events.heartbeats import GangStatus, RankStatus, WorkerHeartbeat
from gangline_schemas.events.progress import RunProgress
from gangline_schemas.events.quota import JobAdmitted
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    JobQueued,
    JobStateChanged,
    NodeAdmitted,
)
from gangline_schemas.events.workers import NodeInfo, NodeUnfit
from gangline_schemas.job import JobSpec, JobState
from support.builders import gangs
from support.builders.read_model import NOW, ReadModel

SPEC = JobSpec.model_validate(
    {
        "name": "train",
        "team": "nlp",
        "command": ["x"],
        "resources": {"gpus": 2},
        "hyperparameters": {"steps": 100},
    }
)
PENDING, RUNNING, SUCCEEDED = JobState.PENDING, JobState.RUNNING, JobState.SUCCEEDED


def node_info(incarnation: str = "i") -> NodeInfo:
    return gangs.node_info("n0", hostname="h", incarnation=incarnation, cpus=8, memory_gb=64)


JOINED = NodeAdmitted(node=node_info())
ADMITTED = JobAdmitted(job_id="a", spec=SPEC, user="ada", submitted_at=NOW)
RELEASED = gangs.gang_released("a", 1, NOW, gpu_seconds=12.5)


def moved(state: JobState, previous: JobState = PENDING, job_id: str = "a") -> JobStateChanged:
    return JobStateChanged(job_id=job_id, attempt=1, previous=previous, state=state)


def queued(job_id: str = "a", minutes: int = 0) -> JobQueued:
    at = NOW + timedelta(minutes=minutes)
    return JobQueued(job_id=job_id, spec=SPEC, user="ada", submitted_at=at)


def allocated(attempt: int = 1) -> GangAllocated:
    return gangs.gang_allocated("a", SPEC, gangs.assigned("n0"), attempt=attempt)


def at_step(number: int, attempt: int = 1, **fields: object) -> RunProgress:
    return RunProgress.model_validate(
        {
            "run_id": "a", "team": "nlp", "attempt": attempt, "rank": 0, "step": number,
            "time_ms": 100 * number, "metrics": {"loss": float(number), "mfu": number - 1.0},
            "step_s": 0.1, **fields,
        }
    )  # fmt: skip


def committed(at_step: int) -> CheckpointCommitted:
    ref = CheckpointRef(job_id="a", attempt=1, step=at_step, world_size=2, commit_key="k")
    return CheckpointCommitted(job_id="a", checkpoint=ref, size_bytes=9, objects=2)


def details(model: ReadModel, job_id: str = "a") -> JobDetails:
    found = model.view().details(job_id)
    assert found is not None
    return found


def node_of(model: ReadModel) -> LiveNode:
    found = model.view().node("n0")
    assert found is not None
    return found


def shown(model: ReadModel) -> Node:
    return present.node(model.view(), node_of(model), None)


def beat_of(attempt: int, *ranks: RankStatus) -> bytes:
    gang = GangStatus(job_id="a", attempt=attempt, ranks=ranks)
    return WorkerHeartbeat(
        node_id="n0", incarnation="i", sequence=1, sent_at=NOW, gangs=(gang,)
    ).encode()


def unfit(reason: str, incarnation: str = "i", after_s: float = 0.0) -> NodeUnfit:
    at = NOW + timedelta(seconds=after_s)
    return NodeUnfit(node=node_info(incarnation), reasons=(reason, "and more"), checked_at=at)
