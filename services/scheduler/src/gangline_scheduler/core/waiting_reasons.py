"""Writes why pending jobs wait, when that changed and not too often; and when they will start.

An event is written when the reason changes, or its bound: that a job starts by a time, since GPUs
are reserved for it. The numbers of a reason change with each job that starts or ends in the
cluster, so a change of numbers alone is written once in `EVIDENCE_EVERY`.

The first estimate of a job's start in a wait is written into the log, with its reason, so that it
can be compared with what came (evolve/gangs.py): `explain` shows that error with each new
estimate. One job on a tick, of the first `ESTIMATED_JOBS`; the forecast looks at few ends
(forecast.py), and what lies further off is estimated once it is closer.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import cycle, islice

from gangline_scheduler.core.cycle import reservations
from gangline_scheduler.core.forecast import forecast
from gangline_scheduler.core.model import Job
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.order import in_order
from gangline_scheduler.core.policy.reasons import Explainer, Reason, later
from gangline_scheduler.core.policy.reservation import Reservation
from gangline_scheduler.core.policy.share import STUCK, Ceilings
from gangline_schemas.clocks import lasts
from gangline_schemas.events.scheduling import JobWaiting

REASONED = 50
REASON_EVERY = timedelta(seconds=15)
EVIDENCE_EVERY = timedelta(minutes=15)
"""The same reason with other numbers is written so often; `explain` has the present ones."""
FULL = frozenset({"capacity", "topology"})
"""Reasons of jobs that wait for GPUs that others have, or that are kept for others."""
KINDS_EXPLAINED = 10
"""So many kinds of jobs are looked at on a tick, in turn: each may take a look at every node."""
ESTIMATED_JOBS = 10
ESTIMATE_ENDS = 20


def give_reasons(plan: Plan, policy: Policy, made: list[Reservation] | None = None) -> None:
    """Write why the first jobs of the queue wait, each at most every `REASON_EVERY`.

    `made`: what is reserved for whom, where the caller knows it.
    """
    state = plan.state
    if not state.pending or not policy.give_reasons:
        return
    explainer = _explainer(plan, policy, made)
    first = list(islice(in_order(policy.order, lambda: state, plan.now), REASONED))
    for job in _in_turn(first, explainer, plan):
        _write(plan, job, explainer.explain(job))
    if policy.estimate_starts:
        _estimate_start(plan, policy, [job.job_id for job in first[:ESTIMATED_JOBS]])


def give_first_reason(plan: Plan, policy: Policy, job_id: str) -> None:
    """Write why a job waits that just began to; shortly, when the queue is long."""
    job = plan.state.jobs.get(job_id)
    waits = job is not None and job_id in plan.state.pending and job.waiting is None
    if job is None or not waits or not policy.give_reasons:
        return
    if len(plan.state.pending) > REASONED:
        _write(plan, job, later())
        return
    _write(plan, job, _explainer(plan, policy).explain(job))


def _in_turn(first: Sequence[Job], explainer: Explainer, plan: Plan) -> list[Job]:
    """The jobs whose kinds have their turn on this tick: all, if they are of few kinds."""
    kinds = dict.fromkeys(explainer.kind(job) for job in first)
    if len(kinds) <= KINDS_EXPLAINED:
        return [*first]
    begin = int(plan.now.timestamp()) * KINDS_EXPLAINED % len(kinds)
    turn = set(islice(cycle(kinds), begin, begin + KINDS_EXPLAINED))
    return [job for job in first if explainer.kind(job) in turn]


def _estimate_start(plan: Plan, policy: Policy, first: list[str]) -> None:
    unestimated = [
        number
        for number, job_id in enumerate(first)
        if (job := plan.state.jobs[job_id]).start_estimate is None
        and job.waiting is not None
        and job.waiting.code not in STUCK
    ]
    if not unestimated:
        return
    # Another one at each tick: one without a forecast keeps no other from it.
    number = unestimated[int(plan.now.timestamp()) % len(unestimated)]
    found = forecast(
        plan.state, first[number], first[:number], plan.now, policy, most_ends=ESTIMATE_ENDS
    )
    job = plan.state.jobs[first[number]]
    waiting = job.waiting
    if found.start is not None and found.exact and waiting is not None:
        fields = {"code": waiting.code, "message": waiting.message, "eta": found.start}
        if job.spec.image is not None:  # these fetch it
            fields["likely_nodes"] = found.nodes
        plan.add(job.job_id, JobWaiting.model_validate({"job_id": job.job_id, **fields}))


def _explainer(plan: Plan, policy: Policy, made: list[Reservation] | None = None) -> Explainer:
    if made is None:
        made = reservations(plan.state, plan.now, policy)
    return Explainer(plan.state, Ceilings(plan.state), made)


def _alike(before: str, reason: Reason) -> bool:
    """Whether it is the written reason, with other numbers. A start that is promised is not.

    That GPUs are free for a moment, and kept for another job, does not count as another reason.
    """
    if reason.promised:
        return False
    return reason.code == before or (before in FULL and reason.code in (*FULL, "reservation"))


def _write(plan: Plan, job: Job, reason: Reason) -> None:
    before = job.waiting
    if before is not None:
        if (before.code, before.message) == (reason.code, reason.message):
            return
        every = EVIDENCE_EVERY if _alike(before.code, reason) else REASON_EVERY
        if lasts(before.at, plan.now, every):
            return
    plan.add(job.job_id, JobWaiting(job_id=job.job_id, code=reason.code, message=reason.message))
