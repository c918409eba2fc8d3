"""Work in the store that the state requests: verifications, deletions, surveys, the one scrub."""

from __future__ import annotations

from gangline_checkpoints.core.model import (
    Delete,
    Effect,
    Survey,
    Verify,
    Work,
    delete_key,
    scrub_key,
    survey_key,
    verify_key,
)
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.state import GRACE_S, CheckpointState

SURVEYS_S = GRACE_S - 60.0, 2 * GRACE_S
"""So long after a job's end a checkpoint without any report is given up: from, until.

The job is put away at the first event after the grace.
"""


def effect(state: CheckpointState, reports: Reports, key: str) -> Effect | None:
    """The effect with this key."""
    read = state.scrubbing
    if read is not None and key == scrub_key(read.job_id, read.id):
        return read
    if key.startswith("survey:"):
        return _surveys(state, reports).get(key)
    return _of_job(state, reports, key.split(":")[1]).get(key)


def wanted(state: CheckpointState, reports: Reports) -> dict[str, Effect]:
    """All effects, by key."""
    found: dict[str, Effect] = {}
    for job_id in state.working:
        found |= _of_job(state, reports, job_id)
    found |= _surveys(state, reports)
    if state.scrubbing is not None:
        found[scrub_key(state.scrubbing.job_id, state.scrubbing.id)] = state.scrubbing
    return found


def _surveys(state: CheckpointState, reports: Reports) -> dict[str, Survey]:
    """Of jobs that ended some time ago, and are not put away yet. Cost: O(these jobs)."""
    found: dict[str, Survey] = {}
    now = reports.now
    for job_id in state.ending:
        job = state.jobs[job_id]
        ended = job.ended_at
        if now is None or ended is None:
            continue
        if SURVEYS_S[0] <= (now - ended).total_seconds() < SURVEYS_S[1]:
            found[survey_key(job_id)] = Survey(job_id, job.prefix)
    return found


def _of_job(state: CheckpointState, reports: Reports, job_id: str) -> dict[str, Work]:
    """The effects of a job. A verification waits until its parts are known again."""
    job = state.jobs.get(job_id)
    found: dict[str, Work] = {}
    if job is None:
        return found
    if job.verifying is not None:
        reported = reports.of(job_id, job.verifying)
        if reported.complete(job.open[job.verifying].written):
            shards = reported.by_rank()
            key = verify_key(job_id, job.verifying, job.verify_tries)
            found[key] = Verify(
                job_id, job.prefix, job.verifying, len(shards), shards, job.verify_tries
            )
    if job.deleting:  # one at a time: a slow store must not keep verifications waiting for many
        step_id, tries = min(job.deleting.items())
        found[delete_key(job_id, step_id, tries)] = Delete(job_id, job.prefix, step_id, tries)
    return found
