"""A pass of a preemptive order: which jobs must run, which are stopped for them, which start.

1. Nothing happens while a gang that was stopped still has its GPUs: all of them go by the order
   together, not one by one to the job that fits first.
2. Gangs that may not be stopped keep their GPUs: those that did not say `preemptible`, ran for less
   than `min_runtime` or were stopped `max_preemptions` times. The other running jobs and those
   pending ones whose teams have room, in one order, are taken as long as the other GPUs last; one
   that is too large is left out. Where GPUs lie does not count for that.
3. Running ones that were left out are stopped; if there are any, the pass ends here, and the next
   one after their end starts the others.
4. Pending ones that were taken start, where there is room for them.

Cost: O(R log R) for R running jobs, and O(P) for the pending ones looked at: once no GPU is left
the others are not. Where all have room none are compared: then it is O(R + P).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge

from gangline_scheduler.core import jobs
from gangline_scheduler.core.allocate import allocate, next_demand
from gangline_scheduler.core.model import Job
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.eligible import fits_empty_cluster
from gangline_scheduler.core.policy.order import in_order
from gangline_scheduler.core.policy.share import Ceilings
from gangline_scheduler.core.policy.statement import Snapshot, Statement
from gangline_scheduler.core.state import State
from gangline_schemas.events.scheduling import StopReason


@dataclass(frozen=True, slots=True)
class Choice:
    """Running jobs to stop and pending ones to start, in order."""

    stop: tuple[Job, ...] = ()
    start: tuple[Job, ...] = ()


def choose(in_turn: Iterable[Job], running: Iterable[Job], gpus: int) -> Choice:
    """The jobs that must run on so many GPUs. `in_turn`: pending and running jobs, best first."""
    left, kept, start = gpus, set(), []
    for job in in_turn:
        wanted = job.allocated_gpus or job.gpus
        if wanted <= left:
            left -= wanted
            if job.gang is None:
                start.append(job)
            else:
                kept.add(job.job_id)
            if left <= 0:
                break
    return Choice(tuple(job for job in running if job.job_id not in kept), tuple(start))


def run_pass(plan: Plan, policy: Policy) -> None:
    """See the module."""
    state, order, now = plan.state, policy.order, plan.now
    if not state.pending or stopping(state):
        return
    live = [state.jobs[job_id] for job_id in state.live]
    fixed = [job for job in live if not _may_be_stopped(job, plan, policy)]
    gpus = state.empty.total() - sum(job.allocated_gpus for job in fixed)
    kept = {job.job_id for job in fixed}
    rest = [job for job in live if job.job_id not in kept]
    ceilings = Ceilings(state)

    def waiting() -> Iterator[Job]:
        jobs_in_order = in_order(order, lambda: state, now)
        return (
            job
            for job in jobs_in_order
            if ceilings.allows(state, job) and fits_empty_cluster(state, next_demand(job, state))
        )

    everybody = _all_that_wait(waiting(), gpus - sum(job.allocated_gpus for job in rest))
    if everybody is not None:
        _start(plan, policy, everybody)
        return
    running = sorted((order.rank(job, state, now), job) for job in rest)
    pending = ((order.rank(job, state, now), job) for job in waiting())
    in_turn = (job for _, job in merge(pending, running))
    choice = choose(in_turn, [job for _, job in running], gpus)
    if choice.stop:
        stop_all(plan, choice.stop)
    else:
        _start(plan, policy, choice.start)


def _all_that_wait(waiting: Iterable[Job], gpus: int) -> list[Job] | None:
    """All of them, in order, if there is room for all beside those that run; else None."""
    found: list[Job] = []
    if gpus < 0:
        return None
    for job in waiting:
        gpus -= job.gpus
        if gpus < 0:
            return None
        found.append(job)
    return found


def stopping(state: State) -> bool:
    """Whether a gang that was asked to stop still has its GPUs."""
    gangs = (state.jobs[job_id].gang for job_id in state.live)
    return any(gang is not None and gang.leaving for gang in gangs)


def stop_all(plan: Plan, victims: Iterable[Job]) -> None:
    """Ask them to save and exit; one of which no rank was seen ends at once."""
    for job in victims:
        plan.stop(job, StopReason.PREEMPTED)
        if job.gang is not None and job.gang.unseen:
            jobs.finish_stop(plan, job.job_id)


def _start(plan: Plan, policy: Policy, chosen: Iterable[Job]) -> None:
    state = plan.state
    snapshot = Snapshot(state.free, state.nodes, levels=state.levels, placer=policy.placer)
    ceilings = Ceilings(state)
    for job in chosen:
        demand = ceilings.within(plan.state, job, next_demand(job, plan.state))
        if demand is None:
            continue
        statement = Statement(snapshot)
        found = statement.place(demand)
        if found is not None:
            statement.commit()
            allocate(plan, job, found)


def _may_be_stopped(job: Job, plan: Plan, policy: Policy) -> bool:
    settings, gang = policy.preemption, job.gang
    if gang is None or not job.spec.preemptible:
        return False
    if not settings.may_stop_again(job.preemptions, job.ran_by(plan.now)):
        return False
    return plan.now - gang.allocated_at >= settings.min_runtime
