"""Which pending job comes first: the fair-share order.

    priority + max(0, (share - 1) * 50) - min(20, wait_minutes / 10), lowest first

`share` is the GPUs that the team holds over those it is guaranteed, so a team above its guarantee
falls back; waiting brings a job forward by up to 20. A team without a guarantee is measured by
its limit: a file that only sets limits gives the plain order by priority and waiting time.
Ties go to the earlier submission, then to the smaller job id.

A job that is restarted after a failure goes before all others: the GPUs that its attempt gave back
are the ones it starts again on, and a failure costs minutes, not a place in the queue.

Cost of one pass: sorting the pending jobs once, O(P log P). Within a team the order does not
depend on the share, so each team's queue is sorted once and only the heads are compared, O(teams)
a job, with the shares as they are after the allocations so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from gangline_scheduler.model import Job, Team
from gangline_scheduler.state import State

SHARE_WEIGHT = 50.0
MAX_WAIT_BONUS = 20.0
MINUTES_PER_POINT = 10.0

Rank = tuple[bool, float, datetime, str]


def share(team: Team | None, used: int) -> float:
    """GPUs held over GPUs owed; see the module for a team without a guarantee."""
    if team is None:
        return float(used)
    base = team.config.gpu_guarantee or team.config.gpu_limit or 1
    return used / base


def share_penalty(team: Team | None, used: int) -> float:
    """By how much a team's jobs fall back for what the team already holds."""
    return max(0.0, (share(team, used) - 1.0) * SHARE_WEIGHT)


def own_rank(job: Job, now: datetime) -> Rank:
    """A job's place within its team: the formula without the share."""
    waited_minutes = max(0.0, (now - job.waiting_since).total_seconds() / 60.0)
    bonus = min(MAX_WAIT_BONUS, waited_minutes / MINUTES_PER_POINT)
    return not job.restarting, job.priority - bonus, job.submitted_at, job.job_id


def rank(job: Job, team: Team | None, used: int, now: datetime) -> Rank:
    """A job's place among all: lowest first."""
    fresh, value, submitted_at, job_id = own_rank(job, now)
    return fresh, value + share_penalty(team, used), submitted_at, job_id


def in_order(current: Callable[[], State], now: datetime) -> Iterator[Job]:
    """The jobs pending at the first step, in fair-share order.

    `current` gives the state at each step, in which jobs given before may have started: the next
    one is chosen by the shares as they are then.
    """
    state = current()
    queues: dict[str, list[tuple[Rank, Job]]] = {}
    for job_id in state.pending:
        job = state.jobs[job_id]
        queues.setdefault(job.team, []).append((own_rank(job, now), job))
    for queue in queues.values():
        queue.sort(key=lambda entry: entry[0], reverse=True)
    while queues:
        team = min(queues, key=lambda name: _head_rank(current(), name, queues[name]))
        yield queues[team].pop()[1]
        if not queues[team]:
            del queues[team]


def _head_rank(state: State, team: str, queue: list[tuple[Rank, Job]]) -> Rank:
    fresh, value, submitted_at, job_id = queue[-1][0]
    penalty = share_penalty(state.teams.get(team), state.used.get(team, 0))
    return fresh, value + penalty, submitted_at, job_id
