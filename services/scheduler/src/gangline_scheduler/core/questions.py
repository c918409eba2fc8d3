"""Answers about one state: why a job waits and until when, and what a new job would do.

`explain`: the dominant reason (policy/reasons.py), the place in the order with the parts of its
formula, what is missing, and a start by the production pass itself (forecast.py), with how far
off such estimates were.
`what_if`: a hypothetical job is admitted to a copy of the state by `Scheduler.decide`, then one
tick; what was decided is the answer. Nothing changes by asking: the given state is never written.

Cost: O(jobs ahead) and a forecast; `what_if` adds one decision and one full pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import takewhile
from statistics import median, quantiles

from gangline_bus.codec import Received
from gangline_bus.decision import Tick
from gangline_scheduler.core import cpu_questions
from gangline_scheduler.core.allocate import next_demand
from gangline_scheduler.core.cycle import reservations
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.forecast import forecast
from gangline_scheduler.core.listing import order_parts, starting_order
from gangline_scheduler.core.model import Job
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.configured import limits_in
from gangline_scheduler.core.policy.placement import place
from gangline_scheduler.core.policy.reasons import Explainer, Reason
from gangline_scheduler.core.policy.share import STUCK, Ceilings
from gangline_scheduler.core.policy.statement import Statement
from gangline_scheduler.core.reserved_gpus import free_for
from gangline_scheduler.core.state import State, fork
from gangline_schemas.api.questions import (
    AheadJob,
    FreedFor,
    GpuNumbers,
    JobExplained,
    Outlook,
    QuotaNumbers,
    RuntimeMiss,
    StartsOn,
    Victim,
    WaitMiss,
    WhatIfAnswer,
)
from gangline_schemas.base import Event
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.quota import JobAdmitted
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangStopping,
    GpusReserved,
    JobStateChanged,
)
from gangline_schemas.gpus import covered_by
from gangline_schemas.job import JobSpec, JobState

AHEAD_SHOWN = 5
FEWEST_RUNS = 3
WHAT_IF = "what-if"


def moment(state: State, *runs: str | None) -> State:
    """A copy to answer from while the state changes; of ended runs it knows these."""
    copy = fork(state)
    found = {run: state.ended.get(run) for run in runs if run is not None}
    copy.ended = {run: ended for run, ended in found.items() if ended is not None}
    return copy


def explain(state: State, job_id: str, now: datetime, policy: Policy) -> JobExplained | None:
    """Why a pending job waits, and until when; None when no such job waits."""
    if job_id in state.cpu_pending:
        return cpu_questions.explain(state, state.jobs[job_id], now, policy)
    if job_id not in state.pending:
        return None
    job = state.jobs[job_id]
    queue = starting_order(state, now, policy)
    ahead = list(takewhile(lambda other: other.job_id != job_id, queue))
    reason = _reason(state, job, len(ahead), now, policy)
    same = job.waiting is not None and job.waiting.code == reason.code
    return JobExplained(
        job_id=job_id,
        code=reason.code,
        message=reason.message,
        since=job.waiting.at if job.waiting is not None and same else job.waiting_since,
        position=len(ahead) + 1,
        ahead=tuple(
            AheadJob(job_id=other.job_id, team=other.team, gpus=other.gpus)
            for other in ahead[:AHEAD_SHOWN]
        ),
        ahead_gpus=sum(other.gpus for other in ahead),
        order=order_parts(state, job, now, policy),
        quota=_quota(state, job.team),
        gpus=_gpus(state, job, policy),
        freed=_freed(state, job_id),
        outlook=_outlook(state, job, [other.job_id for other in ahead], reason, now, policy),
    )


def what_if(state: State, spec: JobSpec, now: datetime, policy: Policy) -> WhatIfAnswer:
    """The decisions of a scheduler with this policy, if a job like this came now."""
    scheduler = Scheduler(limits_in(state), policy)
    trial, job_id = moment(state, spec.resume_from), _unused(state)
    admitted = JobAdmitted(job_id=job_id, spec=spec, user=WHAT_IF, submitted_at=now)
    envelope = Envelope(
        id=job_id, source="/gangline/scheduler/what-if", time=now, subject=job_id, data=admitted
    )
    events: list[Event] = []
    for item in (Received(envelope, WHAT_IF, 0, 0), Tick()):
        for decision in scheduler.decide(trial, None, item, now):
            trial = scheduler.evolve(trial, decision, now)
            events.append(decision.event)
        if not trial.is_pending(job_id):
            break
    found = _would(state, trial, job_id, events, spec, now, policy)
    return found.model_copy(update={"quota": _quota(state, spec.team)})


def _would(
    before: State,
    after: State,
    job_id: str,
    events: Sequence[Event],
    spec: JobSpec,
    now: datetime,
    policy: Policy,
) -> WhatIfAnswer:
    own = [event for event in events if getattr(event, "job_id", None) == job_id]
    reserved = next((event for event in own if isinstance(event, GpusReserved)), None)
    cost = reserved.cost_gpu_seconds if reserved is not None else 0.0
    value = reserved.value_gpu_seconds if reserved is not None else 0.0
    victims = _victims(before, reserved, events)
    for event in own:
        if isinstance(event, GangAllocated):
            gpus = sum(len(part.gpus) for part in event.nodes)
            victims += cpu_questions.yielding(before, events, now)
            return WhatIfAnswer(
                starts="now", gpus=gpus, start=now, level=event.level,
                nodes=tuple(
                    StartsOn(node_id=part.node_id, gpus=len(part.gpus), indexes=part.gpus)
                    for part in event.nodes
                ),
                preempts=victims, cost_gpu_seconds=cost, value_gpu_seconds=value,
            )  # fmt: skip
        if isinstance(event, JobStateChanged) and event.state is JobState.FAILED:
            return WhatIfAnswer(starts="never", gpus=spec.resources.gpus, message=event.reason)
    waiting = explain(after, job_id, now, policy)
    if reserved is not None:
        return WhatIfAnswer(
            starts="after_preemption", gpus=sum(share.gpus for share in reserved.nodes),
            start=max((victim.deadline for victim in victims), default=reserved.until),
            nodes=tuple(StartsOn(node_id=at.node_id, gpus=at.gpus) for at in reserved.nodes),
            preempts=victims, cost_gpu_seconds=cost, value_gpu_seconds=value, waiting=waiting,
            message=f"GPUs are freed for it: {reserved.reason}",
        )  # fmt: skip
    eta = waiting.outlook.eta if waiting is not None else None
    later = eta is not None
    if waiting is not None and spec.resources.gpus == 0:
        later = waiting.code not in STUCK
    return WhatIfAnswer(
        starts="later" if later else "never",
        gpus=spec.resources.gpus,
        start=eta,
        waiting=waiting,
        message=waiting.message if waiting is not None else "",
    )


def _victims(
    before: State, reserved: GpusReserved | None, events: Sequence[Event]
) -> tuple[Victim, ...]:
    if reserved is None:
        return ()
    stops = {event.job_id: event for event in events if isinstance(event, GangStopping)}
    return tuple(
        Victim(
            job_id=name,
            team=before.jobs[name].team,
            gpus=before.jobs[name].allocated_gpus,
            deadline=stops[name].deadline if name in stops else reserved.until,
        )
        for name in reserved.victims
        if name in before.jobs
    )


def _reason(state: State, job: Job, ahead: int, now: datetime, policy: Policy) -> Reason:
    made = reservations(state, now, policy)
    reason = Explainer(state, Ceilings(state), made).explain(job)
    if reason.code != "capacity" or not ahead or _find(state, job, policy) is None:
        return reason
    jobs = "1 job comes" if ahead == 1 else f"{ahead} jobs come"
    return Reason("order", f"{jobs} first in the {policy.order.name} order")


def _find(state: State, job: Job, policy: Policy) -> object | None:
    return Statement(free_for(state, policy, job.job_id)).place(next_demand(job, state))


def _quota(state: State, name: str) -> QuotaNumbers | None:
    team = state.teams.get(name)
    if team is None:
        return None
    return QuotaNumbers(
        allocated=state.used.get(name, 0),
        ceiling=Ceilings(state).ceiling(state, name),
        limit=team.config.gpu_limit,
        borrow_limit=team.config.borrow_limit,
    )


def _gpus(state: State, job: Job, policy: Policy) -> GpuNumbers:
    types = covered_by(job.spec.resources.gpu_type) or ("",)
    free = free_for(state, policy, job.job_id).free
    return GpuNumbers(
        wanted=job.gpus,
        fewest=job.spec.resources.min_gpus or job.gpus,
        free=sum(free.total(model) for model in types),
        total=sum(state.empty.total(model) for model in types),
    )


def _freed(state: State, job_id: str) -> FreedFor | None:
    reserved = state.reserved.get(job_id)
    if reserved is None:
        return None
    return FreedFor(
        reason=reserved.reason,
        nodes=tuple(node_id for node_id, _ in reserved.nodes),
        victims=len(reserved.victims),
        until=reserved.until,
    )


def _outlook(
    state: State, job: Job, ahead: Sequence[str], reason: Reason, now: datetime, policy: Policy
) -> Outlook:
    miss, waits = _runtime_miss(state, job.team), wait_miss(state)
    if place(next_demand(job, state), state.empty, state.levels) is None:
        why = "no nodes that are there could hold it, even if they were empty"
        return Outlook(eta_reason=why, runtime_error=miss, wait_error=waits)
    found = forecast(state, job.job_id, ahead, now, policy)
    if found.start is None:
        why = "it would not start when all that runs now has ended"
        if reason.code == "quota":
            why = "its team may not have so many GPUs, whichever jobs end"
        return Outlook(eta_reason=why, runtime_error=miss, wait_error=waits)
    why = ""
    if not found.exact:
        why = "so much comes first that not all of it was looked at"
    return Outlook(
        eta=found.start,
        eta_is="estimate" if found.exact else "at_least",
        eta_reason=why,
        nodes=found.nodes,
        level=found.level,
        runtime_error=miss,
        wait_error=waits,
    )


def wait_miss(state: State) -> WaitMiss | None:
    """How far off the first estimates of starts were; None with too few of them."""
    misses = [abs(wait.actual_s - wait.estimated_s) for wait in state.waits]
    if len(misses) < FEWEST_RUNS:
        return None
    middle, high = spread(misses)
    return WaitMiss(jobs=len(misses), median_s=round(middle, 1), p90_s=round(high, 1))


def _runtime_miss(state: State, team: str) -> RuntimeMiss | None:
    misses = [
        abs(run.ran_s - run.expected_s) / run.expected_s
        for run in state.runtimes.get(team, ())
        if run.expected_s
    ]
    if len(misses) < FEWEST_RUNS:
        return None
    middle, high = spread(misses)
    return RuntimeMiss(jobs=len(misses), median=round(middle, 4), p90=round(high, 4))


def spread(values: Iterable[float]) -> tuple[float, float]:
    """Median and P90 of at least two values; the P90 is interpolated between neighbours."""
    known = list(values)
    return median(known), quantiles(known, n=10, method="inclusive")[-1]


def _unused(state: State) -> str:
    """An id that no job has; what a user submits ends in hexadecimal digits."""
    job_id = WHAT_IF
    while job_id in state.jobs or job_id in state.ended:
        job_id += "-x"
    return job_id
