"""The queue as a list: the pending jobs in the order in which a pass starts them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from gangline_scheduler.core import cpu_jobs
from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.order import FairShare, in_order, own_rank
from gangline_scheduler.core.policy.victims import owed, promised
from gangline_scheduler.core.queue_pass import claims_go_first, claims_of
from gangline_scheduler.core.state import State
from gangline_scheduler.core.usage import line_of
from gangline_schemas.api.questions import OrderParts


def starting_order(state: State, now: datetime, policy: Policy) -> Iterator[Job]:
    """Waiting jobs, first to last: those within guarantees, then in the policy's order."""
    return (job for job, _ in _walk(state, now, policy))


def _walk(state: State, now: datetime, policy: Policy) -> Iterator[tuple[Job, bool]]:
    """Each job, and whether it comes first for its team's guarantee or as it restarts."""
    first = dict.fromkeys(_claims(state, now, policy)) if claims_go_first(policy) else {}
    yield from ((state.jobs[job_id], True) for job_id in first)
    for job in in_order(policy.order, lambda: state, now):
        if job.job_id not in first:
            yield job, False


def _claims(state: State, now: datetime, policy: Policy) -> Iterator[str]:
    """The jobs that all fit into guarantees together, as if each had started in its turn."""
    given = promised(state)
    for places in claims_of(state, now, policy.order, given):
        for *_, job_id in places:
            job = state.jobs[job_id]
            if not (job.restarting or owed(state, given, job)):
                break
            yield job_id
            for name in line_of(state.teams, job.team):
                given[name] = given.get(name, 0) + job.fewest


@dataclass(frozen=True, slots=True)
class Place:
    """A pending job at its place, with its score: the lowest comes first.

    `because`: "restart" or "guarantee" of one that comes before all others, whatever its score.
    """

    job: Job
    score: float
    because: str = ""


def listed(state: State, now: datetime, policy: Policy) -> Iterator[Place]:
    """`starting_order` with scores: the formula's in the order `fair`, else the place.

    Behind them the jobs without GPUs, which have a queue of their own.
    """
    order = policy.order
    for place, (job, first) in enumerate(_walk(state, now, policy), 1):
        score = order.rank(job, state, now)[1] if isinstance(order, FairShare) else float(place)
        because = ""
        if first or isinstance(order, FairShare):
            because = "restart" if job.restarting else "guarantee" if first else ""
        yield Place(job, score, because)
    for place, job in enumerate(cpu_jobs.in_order(state), 1):
        yield Place(job, float(place), "restart" if job.restarting else "")


def order_parts(state: State, job: Job, now: datetime, policy: Policy) -> OrderParts | None:
    """The terms of a pending job's score; None in other orders than `fair`."""
    if not isinstance(policy.order, FairShare):
        return None
    _, value, *_ = own_rank(job, now)
    penalty = policy.order.penalty(state, job.team)
    return OrderParts(
        priority=job.priority,
        share_penalty=round(penalty, 3),
        waiting_bonus=round(job.priority - value, 3),
        score=round(value + penalty, 3),
    )
