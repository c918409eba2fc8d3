"""Events that the fault manager reads, with the fields that a test cares about."""

from __future__ import annotations

from gangline_faults.core.decide import FaultDecider
from gangline_faults.core.model import Liveness
from gangline_faults.core.policy.timing import Timing
from gangline_faults.core.snapshot import fingerprint
from gangline_faults.core.state import FaultState
from gangline_schemas.events.checkpoints import CheckpointCommitted
from gangline_schemas.events.heartbeats import WorkerHeartbeat
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    GangReleased,
    JobStateChanged,
)
from gangline_schemas.events.workers import ExitReason, NodeJoined, WorkerExited
from gangline_schemas.failure_policy import RestartPolicy
from gangline_schemas.job import JobState
from support.builders.deciding import spec
from support.builders.gangs import gang_allocated, gang_released, node_info, spread
from support.harnesses.decider_run import START, DeciderRun


def fault_run() -> DeciderRun[FaultState, Liveness]:
    return DeciderRun(
        FaultDecider(Timing(heartbeat_timeout_s=60, settle_s=2, hang_min_s=5)), fingerprint
    )


def joined(node_id: str, incarnation: str = "a") -> NodeJoined:
    return NodeJoined(node=node_info(node_id, 1, incarnation=incarnation))


def beat(node_id: str, incarnation: str = "a") -> WorkerHeartbeat:
    return WorkerHeartbeat(node_id=node_id, incarnation=incarnation, sequence=0, sent_at=START)


def allocated(
    job_id: str = "job-1",
    attempt: int = 1,
    nodes: tuple[str, ...] = ("n1", "n2"),
    *,
    incarnation: str = "a",
    restart: RestartPolicy | None = None,
    resume: int | None = None,
) -> GangAllocated:
    return gang_allocated(
        job_id,
        spec("nlp", len(nodes), restart=restart or RestartPolicy()),
        *spread(nodes, incarnation=incarnation),
        attempt=attempt,
        resume=None if resume is None else checkpoint(job_id, 1, resume),
    )


def checkpoint(job_id: str, attempt: int, step: int) -> CheckpointRef:
    return CheckpointRef(
        job_id=job_id, attempt=attempt, step=step, world_size=2, commit_key=f"{attempt}/{step}"
    )


def committed(step: int, attempt: int = 1, job_id: str = "job-1") -> CheckpointCommitted:
    return CheckpointCommitted(
        job_id=job_id, checkpoint=checkpoint(job_id, attempt, step), size_bytes=1, objects=1
    )


def moved(attempt: int = 1, state: JobState = JobState.RUNNING) -> JobStateChanged:
    return JobStateChanged(
        job_id="job-1", attempt=attempt, previous=JobState.INITIALIZING, state=state
    )


def released(job_id: str = "job-1", attempt: int = 1) -> GangReleased:
    return gang_released(job_id, attempt, START)


def ended(job_id: str = "job-1", state: JobState = JobState.FAILED) -> JobStateChanged:
    return JobStateChanged(job_id=job_id, attempt=1, previous=JobState.RUNNING, state=state)


def exited(
    rank: int = 0,
    *,
    job_id: str = "job-1",
    attempt: int = 1,
    reason: ExitReason = ExitReason.FAILED,
    code: int | None = None,
    signal: int | None = None,
    message: str = "",
    out_of_memory: bool = False,
    last_step: int | None = None,
) -> WorkerExited:
    return WorkerExited(
        job_id=job_id,
        attempt=attempt,
        rank=rank,
        node_id=f"n{rank + 1}",
        incarnation="a",
        reason=reason,
        exit_code=code,
        signal=signal,
        message=message,
        out_of_memory=out_of_memory,
        last_step=last_step,
    )


PEER_LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]"


def running(restart: RestartPolicy | None = None) -> DeciderRun[FaultState, Liveness]:
    """`job-1` runs rank 0 on n1 and rank 1 on n2."""
    run = fault_run()
    for node_id in ("n1", "n2"):
        run.feed(joined(node_id))
    run.feed(allocated(restart=restart))
    run.tick()
    return run
