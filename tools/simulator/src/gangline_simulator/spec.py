"""The job specs of a trace's jobs. Equal jobs share what is equal: a trace has many."""

from __future__ import annotations

from collections.abc import Sequence

from gangline_schemas.job import JobSpec
from gangline_schemas.resources import Resources
from gangline_simulator.trace import TraceJob

_LITTLE = 0.001
_LONGEST_H = 24.0 * 365


def specs_of(jobs: Sequence[TraceJob], *, knows_durations: bool) -> dict[str, JobSpec]:
    """By simulated job id. A trace says nothing of CPUs and memory, so they ask for next to none.

    `knows_durations`: their users say truly how long they run.
    """
    resources: dict[tuple[int, int], Resources] = {}
    return {
        f"t{index:07d}": _spec(job, resources, knows_durations=knows_durations)
        for index, job in enumerate(jobs)
    }


def _spec(
    job: TraceJob, known: dict[tuple[int, int], Resources], *, knows_durations: bool
) -> JobSpec:
    size = job.gpus, job.gpus_per_worker
    need = known.get(size)
    if need is None:
        need = Resources(
            gpus=job.gpus,
            gpus_per_worker=job.gpus_per_worker,
            cpus_per_gpu=_LITTLE,
            memory_per_gpu_gb=_LITTLE,
        )
        known[size] = need
    hours = job.duration_s / 3600.0
    says = knows_durations and 0 < hours <= _LONGEST_H
    return JobSpec(
        name="trace",
        team=job.team,
        priority=job.priority,
        preemptible=True,
        command=("x",),
        resources=need,
        expected_runtime_hours=hours if says else None,
    )
