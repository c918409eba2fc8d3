"""Invariants of the checkpoint service's state and log (invariants 3 and 4)."""

from __future__ import annotations

from gangline_checkpoints.core import references
from gangline_checkpoints.core.model import Job, Scrub
from gangline_checkpoints.core.state import CheckpointState


def violations(state: CheckpointState) -> list[str]:
    """Sentences about what does not hold of the jobs that may still change; [] when all is well."""
    found = []
    for job_id in sorted(state.active):
        job = state.jobs.get(job_id)
        if job is None:
            found.append(f"{job_id}: is active but unknown")
            continue
        problems = [*_job_violations(job), *references.violations(job)]
        found += [f"{job_id}: {problem}" for problem in problems]
        found += [
            f"{job_id}: {kept.id} is healthy or is to be read again, and not both"
            for kept in job.kept
            if kept.healthy != ((job_id, *kept.id) in state.verified_at)
        ]
    read = state.scrubbing
    if read is not None and not _is_healthy(state, read):
        found.append(f"{read.job_id}: {read.id} is read again and is not healthy")
    return found


def _is_healthy(state: CheckpointState, read: Scrub) -> bool:
    job = state.find(read.job_id) or Job()
    return any(kept.healthy and kept.id == read.id for kept in job.kept)


def _job_violations(job: Job) -> list[str]:
    found = []
    ids = [kept.id for kept in job.kept]
    if ids != sorted(set(ids)):
        found.append("its checkpoints were committed out of order or twice")
    if ids and ids[-1].attempt > job.attempt:
        found.append(f"{ids[-1]} was committed before its attempt was known")
    lost = set(ids) & job.deleting.keys()
    if lost:
        found.append(f"{sorted(lost)} are kept but being deleted")
    both = set(ids) & job.open.keys()
    if both:
        found.append(f"{sorted(both)} are both open and committed")
    if job.verifying is not None and job.verifying not in job.open:
        found.append(f"{job.verifying} is being verified but is not open")
    elif job.verifying is not None and not job.open[job.verifying].written:
        found.append(f"{job.verifying} is being verified but not all its parts are written")
    return found
