"""The order named `short`: the job that needs least to be done goes first, as far as is known.

The need of a job is
- its stated time (`expected_runtime_hours`) less the time that it has run;
- without a stated time, an hour until it has used 60,000 GPU-seconds, and four days from then on.
  This is least attained service in two queues: most jobs are short, and a job that has run long
  runs longer.
The job goes first that would be done first if it took `stretch` times its need from its submission
on. So short ones pass long ones, and no job is passed for longer than that. The stretch follows the
backlog. It is `STRETCH` while the waiting jobs are less than `BACKLOG_S` of work for the whole
cluster, and grows by `MORE` for each further such time, up to `MOST_STRETCH`. Where all wait for
days, an order that bounds each wait by twice its need is first in, first out.

Restarts go before that, and priorities before all of it in steps of `STEP` points, so that an
urgent job is not behind a short one. Needs are compared by `NEEDS` parts of an octave.

Gangs are stopped by the same order (policy/preemption.py with `preempt_below = 101`), which running
more and waiting do not turn around. One that runs and said nothing counts as submitted `LEAD_S`
sooner. So of two jobs in one queue the one that was submitted earlier has its GPUs.

GPUs are reserved only for a job that is late: it has waited for `LATE` of `stretch` times what it
needs. For one that is first for now they would idle until a shorter one comes and takes them.
Sources: Gu et al., "Tiresias" (NSDI 2019) for the two queues; shortest remaining time first.
Cost: jobs of one need and size are a group (queue.py), and a walk compares the heads of groups.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush
from math import ceil, log2
from typing import Any, NamedTuple

from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.order import Listed, Walk
from gangline_scheduler.core.queue import Slot
from gangline_scheduler.core.state import State

STEP = 20
SPLIT_GPU_S = 60_000.0
SHORT_S = 3600.0
LONG_S = 96 * 3600.0
SHORTEST_S = 60.0
STRETCH = 2.0
MORE = 8.0
MOST_STRETCH = 40.0
BACKLOG_S = 24 * 3600.0
NEEDS = 32
LATE = 0.5
"""After this part of the time in which it may be passed, GPUs are reserved for a job."""
LEAD_S = 4 * 3600.0
"""A running job that said nothing counts as submitted so much sooner."""
STEP_S = 1e12
"""A step of priority, as seconds: more than any two jobs differ by otherwise."""


class Alike(NamedTuple):
    """Waiting jobs that differ only in when they were submitted; `need` counts in `NEEDS`."""

    step: int
    fresh: bool
    need: int
    gpus: int


class ShortFirst(Listed):
    """See the module."""

    def __init__(self) -> None:
        super().__init__("short", lambda job: (job.submitted_at,), strict=False)

    def slot(self, job: Job) -> Slot:
        """Groups by priority, need and size; within one, by submission."""
        need = _need(left_s(job, job.ran_s))
        group = Alike(job.priority // STEP, not job.restarting, need, job.gpus)
        place = (job.submitted_at.timestamp(), job.job_id)
        return Slot(group, place, int(_need_s(need) * job.gpus))

    def walk(self, current: Callable[[], State], now: datetime) -> Walk:  # noqa: ARG002 - port's
        """Jobs by when they would be done, by the stretch at the beginning of the walk."""
        return _ShortWalk(current, stretch(current()))

    def rank(self, job: Job, state: State, now: datetime) -> tuple[Any, ...]:
        """Its place among all: a running job keeps a lead."""
        running = job.gang is not None
        due_s = due(job, stretch(state), now, running=running)
        return job.priority // STEP, running or not job.restarting, due_s, job.job_id

    def standing(
        self,
        job: Job,
        state: State,
        now: datetime,
        *,
        more: int = 0,  # noqa: ARG002 - the port's
    ) -> float:
        """The same as one number: priority, then when it would be done."""
        due_s = due(job, stretch(state), now, running=job.gang is not None)
        return job.priority // STEP * STEP_S + due_s

    def worth(self, job: Job, state: State, now: datetime) -> float:
        """The same for a job that runs, so with its lead."""
        return job.priority // STEP * STEP_S + due(job, stretch(state), now, running=True)

    def patience(self, job: Job, state: State) -> timedelta:
        """A part of the time in which others may pass it."""
        return timedelta(seconds=LATE * stretch(state) * left_s(job, job.ran_s))


class _ShortWalk:
    """A heap of the heads of groups."""

    def __init__(self, current: Callable[[], State], stretched: float) -> None:
        self._current, self._stretched = current, stretched
        self._groups: list[tuple[Any, list[tuple[Any, ...]]]] = [*current().queue.groups().items()]
        self._heads = [self._head(number, 0) for number in range(len(self._groups))]
        heapify(self._heads)

    def next(self) -> Job | None:
        if not self._heads:
            return None
        *_, job_id, number, at = heappop(self._heads)
        if at + 1 < len(self._groups[number][1]):
            heappush(self._heads, self._head(number, at + 1))
        return self._current().jobs[job_id]

    def drop(self) -> None:
        """Jobs behind it may be smaller, or accept other nodes."""

    def _head(self, number: int, at: int) -> tuple[int, bool, float, str, int, int]:
        group, places = self._groups[number]
        submitted_s, job_id = places[at]
        due = submitted_s + self._stretched * _need_s(group.need)
        return group.step, group.fresh, due, job_id, number, at


def stretch(state: State) -> float:
    """How many times what it needs a job may be passed for, by the work that waits."""
    backlog_s = state.queue.work / max(1, state.empty.total())
    return min(MOST_STRETCH, STRETCH + MORE * max(0.0, backlog_s / BACKLOG_S - 1.0))


def left_s(job: Job, ran_s: float) -> float:
    """Seconds that the job is taken to need after it has run for `ran_s`."""
    expected_h = job.spec.expected_runtime_hours
    if expected_h is not None:
        return max(SHORTEST_S, expected_h * 3600 - ran_s)
    return SHORT_S if ran_s * job.gpus <= SPLIT_GPU_S else LONG_S


def due(job: Job, stretched: float, now: datetime, *, running: bool) -> float:
    """When it would be done if it took so many times what it needs; earliest first.

    `running`: with the lead of a job that runs.
    """
    submitted_s, needed_s = job.submitted_at.timestamp(), left_s(job, job.ran_by(now))
    if not running:
        return submitted_s + stretched * _need_s(_need(needed_s))
    lead_s = LEAD_S if job.spec.expected_runtime_hours is None else 0.0
    return submitted_s - lead_s + stretched * needed_s


def _need(needed_s: float) -> int:
    return ceil(NEEDS * log2(needed_s))


def _need_s(need: int) -> float:
    return float(2.0 ** (need / NEEDS))
