"""Submitting jobs, watching them and ending them."""

from __future__ import annotations

import copy
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gangline.errors import CliError, ExitCode
from gangline.job_file import Bundle, JobFile, apply_overrides, check_spec, read_job_file
from gangline.sdk import waiting
from gangline.sdk.answers import path_id
from gangline.sdk.calls import Calls
from gangline.sdk.reproduction import Reproduction, reproduction_of
from gangline_schemas.api.jobs import BundleStored, DryRun, Job, JobPage, JobSummary
from gangline_schemas.api.questions import Explanation, WhatIf
from gangline_schemas.job import JobSpec

LINGER_S = 2.0
"""The last step may be known this much later than the end of its job."""

Submission = JobFile | JobSpec | Mapping[str, Any] | Path | str


class Jobs(Calls):
    """Submitting jobs, watching them and ending them."""

    def submit(
        self,
        job: Submission,
        idempotency_key: str | None = None,
        *,
        overrides: Mapping[str, Any] | None = None,
    ) -> Job:
        """Submit a spec, a mapping of its fields or a job file; uploads its workdir first.

        The same key again gives the same job. Without one, each call is a new job.
        """
        file = read_submission(job, overrides)
        if file.bundle is not None:
            self.upload(file.bundle, file.spec.team)
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self._read(
            Job,
            "POST",
            "/v1/training-jobs",
            body=file.spec.data(),
            headers=headers,
            repeatable=True,
        )

    def reproduction(self, job_id: str) -> Reproduction:
        """The spec that repeats a run from its first step, and what nothing pins."""
        job = self.get(job_id)
        if job.spec is None:
            raise CliError(f"the spec of {job_id} is not known", code=ExitCode.NOT_FOUND)
        return reproduction_of(job, job.spec)

    def reproduce(self, job_id: str, idempotency_key: str | None = None) -> Job:
        """Submit a run again: the same command, code, data, hyperparameters, seed and GPUs."""
        return self.submit(self.reproduction(job_id).spec, idempotency_key)

    def dry_run(self, job: Submission, *, overrides: Mapping[str, Any] | None = None) -> DryRun:
        """Check a job as `submit` does; nothing is uploaded or started."""
        file = read_submission(job, overrides)
        return self._read(
            DryRun,
            "POST",
            "/v1/training-jobs",
            params={"dry_run": "true"},
            body=file.spec.data(),
            repeatable=True,
        )

    def upload(self, bundle: Bundle, team: str) -> BundleStored:
        """Store a packed workdir; one that is there already is not changed."""
        return self._read(
            BundleStored,
            "POST",
            "/v1/code-bundles",
            params={"team": team},
            content=bundle.data,
            headers={"Content-Type": "application/gzip"},
            repeatable=True,
        )

    def get(self, job_id: str) -> Job:
        """One job."""
        return self._read(Job, "GET", f"/v1/training-jobs/{path_id(job_id)}")

    def list(
        self,
        *,
        states: Sequence[str] = (),
        team: str | None = None,
        project: str | None = None,
        user: str | None = None,
        name: str | None = None,
        text: str | None = None,
        order_by: str = "created",
        limit: int | None = None,
    ) -> Iterator[JobSummary]:
        """Jobs, by default the newest first, read page by page; at most `limit`."""
        wanted = {
            "state": [*states] or None,
            "team": team,
            "project": project,
            "user": user,
            "name": name,
            "text": text,
            "order_by": order_by,
        }
        return self._items(JobPage, "/v1/training-jobs", "jobs", limit, **wanted)

    def explain(self, job_id: str) -> Explanation:
        """Why the job is where it is."""
        return self._read(Explanation, "GET", f"/v1/training-jobs/{path_id(job_id)}/explain")

    def what_if(self, job: Submission, *, overrides: Mapping[str, Any] | None = None) -> WhatIf:
        """When and where the job would start now, whom it would preempt; nothing changes."""
        file = read_submission(job, overrides)
        return self._read(WhatIf, "POST", "/v1/what-if", body=file.spec.data())

    def cancel(self, job_id: str) -> Job:
        """End a job; its gang saves first if it can."""
        path = f"/v1/training-jobs/{path_id(job_id)}/cancel"
        return self._read(Job, "POST", path, repeatable=True)

    def set_priority(self, job_id: str, priority: int) -> Job:
        """Change a job's priority: 0 (highest) to 100."""
        path = f"/v1/training-jobs/{path_id(job_id)}/priority"
        body = {"priority": priority}
        return self._read(Job, "POST", path, body=body, repeatable=True)

    def wait(
        self,
        job_id: str,
        timeout_s: float | None = None,
        *,
        on_change: Callable[[Job], None] = lambda _: None,
        linger_s: float = LINGER_S,
    ) -> Job:
        """Wait for a job's end, and at most `linger_s` longer for its last step.

        Raises CliError with code NOT_FINISHED after `timeout_s`.
        """
        job = waiting.until_ended(
            job_id,
            lambda: self.get(job_id),
            timeout_s,
            on_change,
            shown=lambda job: job.state,
            again=f"wait again with: gangline watch {job_id}",
        )
        return self._with_last_step(job, linger_s)

    def _with_last_step(self, job: Job, linger_s: float) -> Job:
        ends = time.monotonic() + linger_s
        while lacks_steps(job) and time.monotonic() < ends:
            time.sleep(waiting.FIRST_POLL_S)
            job = self.get(job.job_id)
        return job


def lacks_steps(job: Job) -> bool:
    """Whether it succeeded and its last steps are not known yet: see `LINGER_S`."""
    if job.state != "succeeded" or job.step is None or job.total_steps is None:
        return False
    return job.step < job.total_steps


def read_submission(job: Submission, overrides: Mapping[str, Any] | None = None) -> JobFile:
    """Any form of a submission as a checked spec and its bundle. Raises CliError."""
    if isinstance(job, JobFile):
        return job
    if isinstance(job, (str, Path)):
        return read_job_file(Path(job), overrides)
    content = job.data() if isinstance(job, JobSpec) else copy.deepcopy(dict(job))
    apply_overrides(content, overrides or {})
    return JobFile(check_spec(content, "the spec"), None)
