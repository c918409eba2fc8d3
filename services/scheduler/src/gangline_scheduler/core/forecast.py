"""When a pending job will start: the production pass, run ahead of time on a copy of the state.

1. The queue is cut to the jobs that come first and the job itself; later ones can delay it
   only by estimates that are wrong.
2. Gangs end one after the other at their expected ends (policy/estimate.py), stopping ones at their
   deadline; after each end the scheduling pass of cycle.py runs at that time.
3. The job's start is when it gets its GPUs: quota, reservations, reserved GPUs and elastic sizes
   count as they do live, since it is the same code.

Ends that are close to each other, for how far off they are (`PRECISION`), count as one, at the last
of them. So a start in ten hours is given to half an hour, far within the error of estimates.
Cost: one pass for each such end until the start, at most `MOST_ENDS`, over at most `MOST_AHEAD`
jobs; beyond either the answer is a lower bound. Figures are in docs/concepts/questions.md.

For jobs without GPUs it is the pass of cpu_jobs.py, and jobs without GPUs end. Gangs with GPUs stay
as they are: another one usually follows, and what they leave is the same then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import heappop, heappush

from gangline_scheduler.core import cpu_jobs, jobs
from gangline_scheduler.core.cycle import run_pass
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.estimate import Estimates
from gangline_scheduler.core.queue import PendingIndex
from gangline_scheduler.core.state import State, fork
from gangline_schemas.events.scheduling import GangAllocated, ReleaseReason
from gangline_schemas.job import JobState

MOST_AHEAD = 200
MOST_ENDS = 300
PRECISION = 0.05


@dataclass(frozen=True, slots=True)
class Forecast:
    """A start and where; `start` None: never, as things stand. Not `exact`: no sooner than that."""

    start: datetime | None
    exact: bool = True
    nodes: tuple[str, ...] = ()
    level: str | None = None


def forecast(
    state: State,
    job_id: str,
    ahead: Sequence[str],
    now: datetime,
    policy: Policy,
    *,
    most_ends: int = MOST_ENDS,
) -> Forecast:
    """When and where a pending job starts; `ahead` are the jobs before it, in order."""
    shown = ahead[:MOST_AHEAD]
    job_ids = [*shown, job_id]
    make = cpu_forecasts if job_id in state.cpu_pending else forecasts
    found = make(state, job_ids, now, policy, of=[job_id], most_ends=most_ends)[job_id]
    if found.start is not None and len(ahead) > MOST_AHEAD:
        return Forecast(found.start, exact=False)
    return found


def forecasts(
    state: State,
    first: Sequence[str],
    now: datetime,
    policy: Policy,
    *,
    of: Sequence[str] | None = None,
    most_ends: int = MOST_ENDS,
) -> dict[str, Forecast]:
    """When and where the first jobs of the queue start, as if no others waited; `of`: only these.

    Jobs with GPUs.
    """
    future = _Future(_cut(state, {*first}), now, policy, run_pass, state.live)
    return future.starts_of(first if of is None else of, most_ends)


def cpu_forecasts(
    state: State,
    first: Sequence[str],
    now: datetime,
    policy: Policy,
    *,
    of: Sequence[str] | None = None,
    most_ends: int = MOST_ENDS,
) -> dict[str, Forecast]:
    """The same for the first jobs of the queue of jobs without GPUs."""
    copy, kept = fork(state), {*first}
    copy.cpu_pending = {job_id: None for job_id in state.cpu_pending if job_id in kept}
    copy.cpu_queue = PendingIndex(state.cpu_queue.slot_of)
    for job_id in copy.cpu_pending:
        copy.cpu_queue.add(copy.jobs[job_id])
    future = _Future(copy, now, policy, cpu_jobs.start, state.cpu_live)
    return future.starts_of(first if of is None else of, most_ends)


class _Future:
    """A state that moves on by itself.

    `run`: the pass; `live`: the gangs that end. `decided` counts the decisions that were looked at.
    """

    def __init__(
        self,
        state: State,
        now: datetime,
        policy: Policy,
        run: Callable[[Plan, Policy], object],
        live: Iterable[str],
    ) -> None:
        self._plan, self._policy, self._run = Plan(state, now), policy, run
        self._asked_at, self._decided = now, 0
        self._ends: list[tuple[datetime, str]] = []
        self._default_s = policy.default_runtime.total_seconds()
        self._expect(live)

    def starts_of(self, job_ids: Sequence[str], most_ends: int) -> dict[str, Forecast]:
        """Of each job. The passes end with the last of their starts."""
        plan, found = self._plan, dict[str, Forecast]()
        left = dict.fromkeys(job_ids)
        for _ in range(most_ends):
            self._run(plan, self._policy)
            started = self._started()
            for job_id in started.keys() & left.keys():
                event = started[job_id]
                nodes = tuple(part.node_id for part in event.nodes)
                found[job_id] = Forecast(plan.now, nodes=nodes, level=event.level)
                del left[job_id]
            if not left:
                return found
            self._expect(started)
            if not self._ends:
                return found | dict.fromkeys(left, Forecast(None))
            self._end_next()
        return found | dict.fromkeys(left, Forecast(plan.now, exact=False))

    def _started(self) -> dict[str, GangAllocated]:
        new = (decision.event for decision in self._plan.decisions[self._decided :])
        started = {event.job_id: event for event in new if isinstance(event, GangAllocated)}
        self._decided = len(self._plan.decisions)
        return started

    def _expect(self, job_ids: Iterable[str]) -> None:
        state = self._plan.state
        estimates = Estimates(state, self._plan.now, self._default_s)
        for job_id in job_ids:
            heappush(self._ends, (estimates.end(state.jobs[job_id]), job_id))

    def _end_next(self) -> None:
        plan, first = self._plan, self._ends[0][0]
        until = first + PRECISION * (first - self._asked_at)
        ended: list[str] = []
        while self._ends and self._ends[0][0] <= until:
            end, job_id = heappop(self._ends)
            plan.now = max(plan.now, end)
            ended.append(job_id)
        for job_id in ended:
            self._end(job_id)

    def _end(self, job_id: str) -> None:
        plan = self._plan
        job = plan.state.jobs.get(job_id)
        if job is None or job.gang is None:
            return
        if job.gang.leaving:
            jobs.finish_stop(plan, job_id)
            return
        plan.move(job_id, JobState.SUCCEEDED)
        plan.release(plan.state.jobs[job_id], ReleaseReason.SUCCEEDED)


def _cut(state: State, kept: set[str]) -> State:
    """A copy in which only these jobs wait."""
    copy = fork(state)
    copy.pending = {job_id: None for job_id in state.pending if job_id in kept}
    copy.restarting = {job_id: None for job_id in state.restarting if job_id in kept}
    copy.queue = PendingIndex(state.queue.slot_of)
    for job_id in copy.pending:
        copy.queue.add(copy.jobs[job_id])
    return copy
