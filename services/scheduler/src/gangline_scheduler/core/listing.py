"""The queue as a list: the pending jobs in the order of the pass, each with its score."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.order import FairShare, in_order
from gangline_scheduler.core.state import State


def listed(state: State, now: datetime, policy: Policy) -> Iterator[tuple[Job, float]]:
    """Waiting jobs, first to last. The score is that of the order `fair`, else the place."""
    order = policy.order
    for place, job in enumerate(in_order(order, lambda: state, now), 1):
        score = order.rank(job, state, now)[1] if isinstance(order, FairShare) else float(place)
        yield job, score
