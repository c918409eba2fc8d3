"""The actions of a tick, in the order that `Policy.actions` names. Each sees what earlier ones did.

- `expire`: gangs whose stop deadline has passed end, or run on if they failed; gangs that reached
  their `max_runtime_hours` are stopped. A deadline of a clock that was ahead is set again.
  Reservations of jobs that ended are over.
- `drain`: gangs whose time on a draining node is over leave it (relocate.py).
- `allocate`: a full pass over the queue (cycle.py).
- `resize`: elastic gangs give GPUs to a job that still waits, or take idle ones (relocate.py).
- `make_room`: gangs are moved or stopped for jobs that are urgent, owed or only fit if others move
  (preemption_plan.py).
- `backfill`: one more pass, if no gangs were stopped for a claim that GPUs were reserved for.
- `grow`: an elastic gang takes what its team is owed (policy/growing.py).
- `explain`: jobs that wait get their reasons (waiting_reasons.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from gangline_scheduler.core import cycle, jobs, preemption_plan, relocate, waiting_reasons
from gangline_scheduler.core.model import Gang, Job, Stop
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.configured import Limits
from gangline_scheduler.core.policy.reservation import Reservation
from gangline_scheduler.core.reserved_gpus import end_reservations
from gangline_schemas.base import Event
from gangline_schemas.events.scheduling import GangStopping, JobStateChanged, StopReason
from gangline_schemas.job import JobState


@dataclass(slots=True)
class TickRun:
    """One tick: its settings, and what earlier actions leave for later ones.

    `reserved`: what the last pass reserved, with which so many decisions were made (`decided`).
    `before_pass`: the number of decisions before the first pass.
    """

    policy: Policy
    limits: Limits
    reserved: list[Reservation] = field(default_factory=list)
    decided: int = -1
    before_pass: int | None = None


Action = Callable[[Plan, TickRun], None]


def run(plan: Plan, policy: Policy, limits: Limits) -> None:
    """Run the actions of the policy, in its order."""
    tick = TickRun(policy, limits)
    for name in policy.actions:
        BY_NAME[name](plan, tick)


def explain_new(plan: Plan, policy: Policy, decided: list[Event]) -> None:
    """Write why the jobs wait that began to with these events."""
    for event in decided:
        if isinstance(event, JobStateChanged) and event.state is JobState.PENDING:
            waiting_reasons.give_first_reason(plan, policy, event.job_id)


def _expire(plan: Plan, tick: TickRun) -> None:
    for job_id in [*plan.state.live, *plan.state.cpu_live]:
        job = plan.state.jobs[job_id]
        if job.gang is None:
            continue
        stop = job.gang.stop
        if stop is not None and _is_too_far(plan, job, stop, tick.limits):
            plan.add(job_id, _from_now(plan, job, job.gang, stop, tick.limits))
            continue
        if stop is not None:
            # Agents need a moment to report that a gang is gone. One with a verdict is known to be.
            margin = stop.deadline if stop.verdict else stop.deadline + tick.limits.stop_margin
            if plan.now > margin:
                jobs.finish_stop(plan, job_id)
                continue
        limit = job.spec.max_runtime_hours
        ending = stop is not None and stop.reason in {StopReason.CANCELLED, StopReason.MAX_RUNTIME}
        if limit is not None and job.ran_by(plan.now) > limit * 3600 and not ending:
            jobs.exceed_runtime(plan, job)
    end_reservations(plan)


def _longest(job: Job, stop: Stop, limits: Limits) -> timedelta:
    """The time that such a stop gives at most."""
    return limits.save_wait if stop.verdict else timedelta(seconds=job.spec.stop_grace_seconds)


def _is_too_far(plan: Plan, job: Job, stop: Stop, limits: Limits) -> bool:
    """Whether the deadline is of a clock that was ahead, and would be waited for in vain."""
    return stop.deadline - plan.now > _longest(job, stop, limits) + limits.stop_margin


def _from_now(plan: Plan, job: Job, gang: Gang, stop: Stop, limits: Limits) -> GangStopping:
    """The same stop, with a deadline by the clock as it is now."""
    return GangStopping(
        job_id=job.job_id,
        attempt=gang.attempt,
        reason=stop.reason,
        deadline=plan.now + _longest(job, stop, limits),
        resize_to=job.resize_to,
        verdict=stop.verdict,
    )


def _drain(plan: Plan, tick: TickRun) -> None:
    relocate.leave(plan, tick.policy)


def _allocate(plan: Plan, tick: TickRun) -> None:
    if tick.before_pass is None:
        tick.before_pass = len(plan.decisions)
    _pass(plan, tick)


def _resize(plan: Plan, tick: TickRun) -> None:
    relocate.resize(plan, tick.policy)


def _make_room(plan: Plan, tick: TickRun) -> None:
    preemption_plan.stop_for_waiting(plan, tick.policy, tick.reserved)


def _backfill(plan: Plan, tick: TickRun) -> None:
    refused = cycle.refused(plan, tick.reserved)
    if refused:
        _pass(plan, tick, refused)


def _pass(plan: Plan, tick: TickRun, refused: frozenset[str] = frozenset()) -> None:
    tick.reserved = cycle.run_pass(plan, tick.policy, refused=refused)
    tick.decided = len(plan.decisions)


def _grow(plan: Plan, tick: TickRun) -> None:
    preemption_plan.grow(plan, tick.policy)


def _explain(plan: Plan, tick: TickRun) -> None:
    """Reservations of the last pass still hold if nothing was decided since."""
    holds = len(plan.decisions) == tick.decided
    decided = [decision.event for decision in plan.decisions[: tick.before_pass]]
    waiting_reasons.give_reasons(plan, tick.policy, tick.reserved if holds else None)
    explain_new(plan, tick.policy, decided)


BY_NAME: dict[str, Action] = {
    "expire": _expire,
    "drain": _drain,
    "allocate": _allocate,
    "resize": _resize,
    "make_room": _make_room,
    "backfill": _backfill,
    "grow": _grow,
    "explain": _explain,
}
