"""Admission of a dry run: quota's own functions on the state that the gateway follows.

No event carries quota's rule for data approvals, so the gateway has its own setting
`data_approvals`. If the two settings differ, the answers differ too.
"""

from __future__ import annotations

from gangline_gateway.app_context import AppContext
from gangline_gateway.quota_state import state_of
from gangline_quota.core.admission import must_wait, never_runs
from gangline_schemas import job_ids
from gangline_schemas.job import JobSpec

DRY_RUN_SUFFIX = "0" * job_ids.SUFFIX_CHARS
"""Ends the job id in the answer to a dry run."""


def quota_notes(app: AppContext, spec: JobSpec) -> tuple[list[str], bool]:
    """Quota's reasons against the job, and whether quota would reject it.

    Raises NoStateError if quota is newer than this gateway.
    """
    state = state_of(app.tail.view().quota)
    job_id = job_ids.job_id(spec.name, DRY_RUN_SUFFIX)
    never = never_runs(state, job_id, spec, app.data_approvals)
    if never is not None:
        return [f"the job would be rejected: {never}"], True
    note = must_wait(state, spec)
    return ([] if note is None else [f"the job {note}"]), False
