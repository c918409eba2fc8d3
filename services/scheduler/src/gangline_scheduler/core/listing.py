"""The queue as a list: the pending jobs in the order in which a pass starts them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.order import FairShare, in_order
from gangline_scheduler.core.policy.victims import owed, promised
from gangline_scheduler.core.queue_pass import claims_go_first, claims_of
from gangline_scheduler.core.state import State
from gangline_scheduler.core.usage import line_of


def starting_order(state: State, now: datetime, policy: Policy) -> Iterator[Job]:
    """Waiting jobs, first to last: those within guarantees, then in the policy's order."""
    first = dict.fromkeys(_claims(state, now, policy)) if claims_go_first(policy) else {}
    yield from (state.jobs[job_id] for job_id in first)
    for job in in_order(policy.order, lambda: state, now):
        if job.job_id not in first:
            yield job


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


def listed(state: State, now: datetime, policy: Policy) -> Iterator[tuple[Job, float]]:
    """`starting_order` with scores: the formula's in the order `fair`, else the place."""
    order = policy.order
    for place, job in enumerate(starting_order(state, now, policy), 1):
        score = order.rank(job, state, now)[1] if isinstance(order, FairShare) else float(place)
        yield job, score
