"""Jobs without GPUs: which start, where, and which stop for a gang with GPUs.

They have a queue of their own: those that start again first, then by priority, then the team that
uses the fewest CPUs for such jobs, then the oldest. A job that does not fit holds up none behind
it, unless it has waited longer than the policy's `reserve_after`: then its nodes are closed to them
(policy/cpu_placement.py).

After each input and tick: jobs without GPUs stop where a gang with GPUs was placed and needs their
CPUs or memory. Then jobs without GPUs start, if any wait and room may have come. Cost: nothing
while there are none; else O(nodes) a pass, and for each kind of job that is tried.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Sequence
from datetime import datetime
from heapq import merge
from typing import Any

from gangline_scheduler.core import jobs
from gangline_scheduler.core.allocate import allocate
from gangline_scheduler.core.model import Job, Node
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.cpu_capacity import CpuCapacity, over_limit, taken, unused
from gangline_scheduler.core.policy.cpu_placement import CpuNodes, closest_level, teams_apart
from gangline_scheduler.core.policy.cpu_reasons import CpuReason, reason
from gangline_scheduler.core.policy.placement import Part, Placement
from gangline_scheduler.core.queue import cpu_slot
from gangline_scheduler.core.state import State
from gangline_schemas.base import Event
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    JobReprioritized,
    JobStateChanged,
    JobWaiting,
    NodeAdmitted,
    NodeUncordoned,
    TeamCpuBudgetNoted,
    TeamNoted,
)

REASONED = 50
"""So many of those that wait get a reason on a tick."""


def follow(plan: Plan, policy: Policy, before: int) -> None:
    """Stops and starts jobs without GPUs after the decisions since `before`."""
    _yield(plan, [decision.event for decision in plan.decisions[before:]])
    decided = [decision.event for decision in plan.decisions[before:]]
    if plan.state.cpu_pending and any(_may_start(plan.state, event) for event in decided):
        nodes = start(plan, policy)
        if policy.give_reasons:
            _explain(plan, nodes, _without_reason(plan.state, decided))


def tick(plan: Plan, policy: Policy, before: int) -> None:
    """The same on a tick, and reasons."""
    _yield(plan, [decision.event for decision in plan.decisions[before:]])
    if not plan.state.cpu_pending:
        return
    nodes = start(plan, policy)
    if policy.give_reasons:
        _explain(plan, nodes, [*plan.state.cpu_pending][:REASONED])


def is_cpu_job(before: State, plan: Plan, job_id: str) -> bool:
    """Whether a decision is about a job without GPUs, which may have ended since `before`."""
    job = before.jobs.get(job_id) or plan.state.jobs.get(job_id)
    return job is not None and job.cpu_only


def in_order(state: State) -> list[Job]:
    """Those that wait, as they stand in the queue now."""
    waiting = (state.jobs[job_id] for job_id in state.cpu_pending)
    return sorted(waiting, key=lambda job: _place(state, job))


def _may_start(state: State, event: Event) -> bool:
    """Whether one joined their queue, or changed its place there, or room may have come."""
    if isinstance(event, JobStateChanged | JobReprioritized):
        return event.job_id in state.cpu_pending
    return isinstance(
        event,
        GangReleased | NodeAdmitted | NodeUncordoned | TeamNoted | TeamCpuBudgetNoted,
    )


def start(plan: Plan, policy: Policy) -> CpuNodes:
    """Start those that fit, in order; a kind of which one does not fit is left out."""
    nodes, left_out = CpuNodes(plan.state), set[Hashable]()
    queues = _by_team(plan.state, left_out)
    first = {team: next(queue) for team, queue in queues.items()}
    closed = False
    while first:
        team = min(first, key=lambda one: _place(plan.state, first[one]))
        job = first[team]
        if over_limit(plan.state, job) is not None:
            left_out.add(cpu_slot(job).group)
        elif not _starts(plan, nodes, job):
            left_out.add(cpu_slot(job).group)
            if not closed and plan.now - job.waiting_since > policy.reserve_after:
                closed = nodes.close_for(job)
        following = next(queues[team], None)
        if following is None:
            del first[team]
        else:
            first[team] = following
    return nodes


def _starts(plan: Plan, nodes: CpuNodes, job: Job) -> bool:
    """Start a job, if it fits."""
    parts = nodes.place(job)
    if parts is None:
        return False
    level = closest_level([plan.state.nodes[name] for name in parts], plan.state.levels)
    allocate(plan, job, Placement(tuple(Part(name, ()) for name in parts), level))
    return True


def _by_team(state: State, left_out: Container[Hashable]) -> dict[str, Iterator[Job]]:
    """The jobs of each team in order, without those whose group is left out by then."""

    def of_group(group: Hashable, places: list[tuple[Any, ...]]) -> Iterator[Job]:
        for place in places:
            if group in left_out:
                return
            yield state.jobs[place[-1]]

    teams: dict[str, list[Iterator[Job]]] = {}
    for group, places in state.cpu_queue.groups().items():
        team = state.jobs[places[0][-1]].team
        teams.setdefault(team, []).append(of_group(group, places))
    return {team: merge(*found, key=_in_team) for team, found in teams.items()}


def _place(state: State, job: Job) -> tuple[bool, int, int, datetime, datetime, str]:
    place = _in_team(job)
    return *place[:2], state.used_cpus.get(job.team, 0), *place[2:]


def _in_team(job: Job) -> tuple[bool, int, datetime, datetime, str]:
    return not job.restarting, job.priority, job.waiting_since, job.submitted_at, job.job_id


def _yield(plan: Plan, decided: Sequence[Event]) -> None:
    """Stop jobs without GPUs whose CPUs or memory a gang with GPUs has now.

    Also those on a node that joined again, or reloaded, with less than they have.
    """
    if not plan.state.cpu_live:
        return
    touched: dict[str, str | None] = {}
    for event in decided:
        if isinstance(event, NodeAdmitted):
            touched.setdefault(event.node.node_id, None)
        elif isinstance(event, GangAllocated):
            touched |= {part.node_id: event.team for part in event.nodes if part.gpus}
    for node_id, team in touched.items():
        while (job_id := _in_the_way(plan.state, plan.state.nodes[node_id], team)) is not None:
            jobs.yield_cpus(plan, job_id, node_id)


def _in_the_way(state: State, node: Node, team: str | None) -> str | None:
    """The next job without GPUs that must stop here: the least urgent one, the youngest first.

    `team`: whose gang with GPUs came, if one did.
    """
    there = [state.jobs[job_id] for job_id, _ in node.cpu_allocations]
    if team is not None and any(name != team for name in teams_apart(state, node)):
        there = [job for job in there if job.team != team]
    elif unused(node).less(taken(node)).holds(CpuCapacity()):
        return None
    ordered = [
        (job.priority, job.gang.allocated_at, job.job_id) for job in there if job.gang is not None
    ]
    return max(ordered)[-1] if ordered else None


def _without_reason(state: State, decided: Sequence[Event]) -> list[str]:
    """Those that joined the queue now and still wait."""
    names = [
        event.job_id
        for event in decided
        if isinstance(event, JobStateChanged) and event.job_id in state.cpu_pending
    ]
    return [name for name in dict.fromkeys(names) if state.jobs[name].waiting is None]


def _explain(plan: Plan, nodes: CpuNodes, job_ids: Sequence[str]) -> None:
    """Write the reasons that changed; jobs of one kind have the same."""
    known: dict[Hashable, CpuReason] = {}
    for job_id in job_ids:
        job = plan.state.jobs[job_id]
        group = cpu_slot(job).group
        if group not in known:
            known[group] = reason(plan.state, nodes, job)
        found = known[group]
        if job.waiting is None or job.waiting.code != found.code:
            plan.add(job_id, JobWaiting(job_id=job_id, code=found.code, message=found.message))
