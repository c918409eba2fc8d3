"""Who needs least to be done goes first, as far as that is known: the order named `short`.

What a job still needs is
- what it said (`expected_runtime_hours`) less what it has run;
- for a job that said nothing, an hour until it has held 60,000 GPU-seconds, and four days from
  then on (least attained service, in two queues: most jobs are short, and who has run long runs
  on).
First goes who would be done first if it took `STRETCH` times what it needs from its submission on:
so short ones pass long ones, and nobody is passed for longer than twice what it needs. Restarts go
before that, and priorities before all of it in steps of `STEP` points, so that an urgent job is not
behind a short one.

A running job is compared by half of what it needs: one that waits must be much shorter to have it
stopped (policy/preemption.py with `preempt_below = 101`), or two jobs would take turns.
Sources: Gu et al., "Tiresias" (NSDI 2019) for the two queues; shortest remaining time first.
Cost: one sorted list.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from gangline_scheduler.model import Job
from gangline_scheduler.policy.order import Listed
from gangline_scheduler.state import State

STEP = 20
SPLIT_GPU_S = 60_000.0
SHORT_S = 3600.0
LONG_S = 96 * 3600.0
SHORTEST_S = 60.0
LONGEST_S = 366 * 24 * 3600.0
STRETCH = 2.0
KEEP = 0.5
"""A running job counts as needing this part of what it needs."""


class ShortFirst(Listed):
    """See the module."""

    def __init__(self) -> None:
        super().__init__("short", _waiting_place, strict=False)

    def rank(self, job: Job, state: State, now: datetime) -> tuple[Any, ...]:  # noqa: ARG002
        """Its place among all: a running job keeps a lead."""
        if job.gang is None:
            return (*_waiting_place(job), job.job_id)
        needed_s = KEEP * left_s(job, job.ran_by(now))
        return job.priority // STEP, True, due_s(job, needed_s), job.job_id

    def standing(
        self,
        job: Job,
        state: State,  # noqa: ARG002 - the port's
        now: datetime,
        *,
        more: int = 0,  # noqa: ARG002
    ) -> float:
        """What it needs, after its priority; a running job keeps a lead."""
        return _standing(job, now, KEEP if job.gang is not None else 1.0)

    def worth(self, job: Job, now: datetime) -> float:
        """The same for a job that runs, so with its lead."""
        return _standing(job, now, KEEP)


def left_s(job: Job, ran_s: float) -> float:
    """Seconds that the job is taken to need after it has run for `ran_s`."""
    said = job.spec.expected_runtime_hours
    if said is not None:
        return max(SHORTEST_S, said * 3600 - ran_s)
    return SHORT_S if ran_s * job.gpus <= SPLIT_GPU_S else LONG_S


def due_s(job: Job, needed_s: float) -> float:
    """When it would be done if it took `STRETCH` times what it needs; earliest first."""
    return job.submitted_at.timestamp() + STRETCH * needed_s


def _waiting_place(job: Job) -> tuple[Any, ...]:
    due = due_s(job, left_s(job, job.ran_s))
    return job.priority // STEP, not job.restarting, due


def _standing(job: Job, now: datetime, part: float) -> float:
    needed_s = part * left_s(job, job.ran_by(now))
    return job.priority // STEP * LONGEST_S + min(needed_s, LONGEST_S)
