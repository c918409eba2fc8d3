"""Telling pending jobs why they wait: when it changed, and not too often."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice

from gangline_scheduler.cycle import reservations
from gangline_scheduler.model import Job
from gangline_scheduler.plan import Plan
from gangline_scheduler.policy.config import Policy
from gangline_scheduler.policy.order import in_order
from gangline_scheduler.policy.reasons import Explainer, Reason, later
from gangline_scheduler.policy.share import Ceilings
from gangline_schemas.events.scheduling import JobWaiting

REASONED = 50
REASON_EVERY = timedelta(seconds=15)


def give_reasons(plan: Plan, policy: Policy) -> None:
    """Tell the first jobs of the queue why they wait, each at most every `REASON_EVERY`."""
    state = plan.state
    if not state.pending:
        return
    explainer = _explainer(plan, policy)
    for job in list(islice(in_order(policy.order, lambda: state, plan.now), REASONED)):
        _tell(plan, job, explainer.explain(job))


def give_first_reason(plan: Plan, policy: Policy, job_id: str) -> None:
    """Tell a job that just began to wait why; shortly, when the queue is long."""
    job = plan.state.jobs.get(job_id)
    if job is None or job_id not in plan.state.pending or job.waiting is not None:
        return
    if len(plan.state.pending) > REASONED:
        _tell(plan, job, later())
        return
    _tell(plan, job, _explainer(plan, policy).explain(job))


def _explainer(plan: Plan, policy: Policy) -> Explainer:
    made = reservations(plan.state, plan.now, policy)
    return Explainer(plan.state, Ceilings(plan.state), made)


def _tell(plan: Plan, job: Job, reason: Reason) -> None:
    before = job.waiting
    same = before is not None and before.code == reason.code
    if before is not None and same and before.message == reason.message:
        return
    if before is not None and same and plan.now - before.at < REASON_EVERY:
        return
    plan.add(job.job_id, JobWaiting(job_id=job.job_id, code=reason.code, message=reason.message))
