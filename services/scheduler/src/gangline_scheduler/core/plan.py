"""The decisions of one input about jobs and gangs, each of which sees the earlier ones."""

from __future__ import annotations

from datetime import datetime, timedelta

from gangline_bus import plan
from gangline_scheduler.core.evolve import fold
from gangline_scheduler.core.model import Job
from gangline_scheduler.core.state import State, branch
from gangline_schemas.events.scheduling import (
    GangReleased,
    GangStopping,
    JobStateChanged,
    ReleaseReason,
    StopReason,
)
from gangline_schemas.events.workers import SampleRange
from gangline_schemas.job import JobState


def _cpu_seconds(job: Job, held_s: float) -> float | None:
    if not job.cpu_only or job.gang is None:
        return None
    return job.spec.resources.cpu_thousandths(job.gang.world_size) / 1000 * held_s


class Plan(plan.Plan[State, None]):
    """With the decisions that change a job's state and its gang."""

    def __init__(self, state: State, now: datetime) -> None:
        super().__init__(state, None, now, fold, branch)

    def move(self, job_id: str, to: JobState, reason: str = "") -> None:
        """Change a job's state; nothing when it is in it."""
        job = self.state.jobs[job_id]
        if job.state is to:
            return
        self.add(
            job_id,
            JobStateChanged(
                job_id=job_id, attempt=job.attempt, previous=job.state, state=to, reason=reason
            ),
        )

    def stop(self, job: Job, reason: StopReason, *, resize_to: int | None = None) -> None:
        """Ask a live gang to checkpoint and exit. A stop under way keeps its deadline.

        `resize_to`: the GPUs that its next attempt takes at most.
        """
        if job.gang is None:
            return
        earlier = job.gang.stop
        grace = job.spec.stop_grace_seconds
        deadline = self.now + timedelta(seconds=grace) if earlier is None else earlier.deadline
        self.add(
            job.job_id,
            GangStopping(
                job_id=job.job_id,
                attempt=job.gang.attempt,
                reason=reason,
                deadline=deadline,
                resize_to=resize_to,
            ),
        )
        self.move(job.job_id, JobState.CHECKPOINTING, reason.value)

    def release(
        self,
        job: Job,
        reason: ReleaseReason,
        *,
        avoid_nodes: tuple[str, ...] = (),
        avoid_required: bool = False,
        left_out: tuple[SampleRange, ...] = (),
    ) -> None:
        """Free the job's GPUs; nothing when it has none."""
        if job.gang is None:
            return
        held_s = max(0.0, (self.now - job.gang.allocated_at).total_seconds())
        self.add(
            job.job_id,
            GangReleased(
                job_id=job.job_id,
                attempt=job.gang.attempt,
                reason=reason,
                allocated_at=job.gang.allocated_at,
                gpu_seconds=job.allocated_gpus * held_s,
                cpu_seconds=_cpu_seconds(job, held_s),
                avoid_nodes=avoid_nodes,
                avoid_required=avoid_required,
                left_out=left_out,
            ),
        )
