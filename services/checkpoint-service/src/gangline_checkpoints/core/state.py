"""The state of the checkpoint service: what is open, what is kept, what is being deleted."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from gangline_bus.plan import Plan
from gangline_checkpoints.core import archive
from gangline_checkpoints.core.model import Job, Scrub, StepId
from gangline_checkpoints.core.policy.interval import Failures
from gangline_checkpoints.core.reports import Reports

GRACE_S = 600.0
"""How long parts of an ended or unknown attempt are waited for."""
Stored = tuple[str, int, int]
"""Job, attempt and step of a committed checkpoint."""


@dataclass(slots=True)
class CheckpointState:
    """`active` are the `jobs` that may still change.

    - `ending`: ended jobs, oldest first, whose late parts may still come.
    - `archive`: a line for each ended job that still has checkpoints (archive.py).
    - `ended`: ended jobs without any, and since when; forgotten by the rule of
      gangline_schemas.memory.
    - `verified_at`: when each healthy committed checkpoint was last verified, oldest first;
      unreadable ones last. The archive is in the same order, by job; `round` counts the checkpoints
      of its first job that were read again by now.
    - `scrubbing`: the one that is read again now. `scrubbed_at`: the end of the last such reading,
      `scrub_away`: whether it ended because the store was away.
    - `failures`: of all jobs.
    - `validating`: the checkpoints that wait for validation, by the run that will do it.
    - `registering`: those of which the registry makes versions now, by the number of the
      registration; `registration`: the newest number.
    - `working`: the jobs with something to verify or to delete.
    """

    jobs: dict[str, Job] = field(default_factory=dict)
    active: dict[str, None] = field(default_factory=dict)
    ending: dict[str, datetime] = field(default_factory=dict)
    archive: dict[str, bytes] = field(default_factory=dict)
    ended: dict[str, datetime] = field(default_factory=dict)
    working: dict[str, None] = field(default_factory=dict)
    verified_at: dict[Stored, datetime] = field(default_factory=dict)
    scrubbing: Scrub | None = None
    scrubbed_at: datetime | None = None
    scrub_away: bool = False
    round: tuple[str, int] = ("", 0)
    failures: Failures = field(default_factory=Failures)
    validating: dict[str, Stored] = field(default_factory=dict)
    registering: dict[int, Stored] = field(default_factory=dict)
    registration: int = 0

    def find(self, job_id: str) -> Job | None:
        """A job, also an ended one with retained checkpoints. Not to be changed."""
        line = self.archive.get(job_id)
        return self.jobs.get(job_id) if line is None else archive.read(job_id, line)[0]

    def in_use(self) -> dict[str, set[StepId]]:
        """Checkpoints that unfinished jobs start from or validate, by the job that owns them.

        And those that become versions of models.
        """
        found: dict[str, set[StepId]] = {}
        for job_id in self.active:
            job = self.jobs[job_id]
            for start in (job.resume, job.restored, job.validates):
                if start is not None:
                    found.setdefault(start.job_id, set()).add(StepId(start.attempt, start.step))
        for owner, attempt, step in (*self.validating.values(), *self.registering.values()):
            found.setdefault(owner, set()).add(StepId(attempt, step))
        return found


CheckpointPlan = Plan[CheckpointState, Reports]
