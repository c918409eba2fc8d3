"""Giving a gang its GPUs: the event that starts an attempt."""

from __future__ import annotations

from dataclasses import replace

from gangline_bus.decision import InvariantViolated
from gangline_scheduler.core.invariants import takes_no_reserved_gpus, whole_workers
from gangline_scheduler.core.model import Avoid, Demand, Gang, Job, Node, demand_of
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.placement import Placement
from gangline_scheduler.core.state import State
from gangline_schemas.events.scheduling import GangAllocated, NodeAssignment, Rendezvous
from gangline_schemas.job import JobSpec, JobState


def allocate(plan: Plan, job: Job, placement: Placement) -> None:
    """Write the allocation, and that the job is scheduled. A part without GPUs is one rank.

    Raises InvariantViolated if it took GPUs that are reserved for another, or a worker crosses a
    node.
    """
    nodes = plan.state.nodes
    assignments: list[NodeAssignment] = []
    first_rank = 0
    for part in placement.parts:
        info = nodes[part.node_id].info
        assignments.append(
            NodeAssignment(
                node_id=part.node_id,
                incarnation=info.incarnation,
                address=info.address,
                gpus=part.gpus,
                first_rank=first_rank,
                copies_port=info.copies_port,
            )
        )
        first_rank += len(part.gpus) or 1
    lead = nodes[placement.parts[0].node_id]
    event = GangAllocated(
        job_id=job.job_id,
        attempt=job.attempt + 1,
        team=job.team,
        world_size=first_rank,
        nodes=tuple(assignments),
        rendezvous=Rendezvous(address=lead.info.address, port=_port(plan.state, lead)),
        resume=job.resume,
        spec=job.spec,
        level=placement.level,
        checkpoint_interval_s=job.checkpoint_interval_s,
        left_out=job.left_out,
    )
    wrong = takes_no_reserved_gpus(plan.state, event) + whole_workers(event)
    if wrong:
        raise InvariantViolated("; ".join(wrong))
    plan.add(job.job_id, event)
    plan.move(job.job_id, JobState.SCHEDULED)


def _port(state: State, lead: Node) -> int:
    """In rotation, so that a port that a dead gang may still hold is used as late as possible.

    One that a live gang has is passed over.
    """
    ports, first = lead.info.rendezvous_ports, lead.led
    gangs = [state.jobs[job_id].gang for job_id in lead.jobs]
    busy = {gang.port for gang in gangs if gang is not None and _leads(lead, gang)}
    turn = (ports[at % len(ports)] for at in range(first, first + len(ports)))
    return next((port for port in turn if port not in busy), ports[first % len(ports)])


def _leads(node: Node, gang: Gang) -> bool:
    return gang.nodes[0].node_id == node.info.node_id


def next_demand(job: Job, state: State) -> Demand:
    """The demand of a job's next gang: as its spec says, away from nodes where it failed.

    An elastic gang that gave GPUs to a job that still waits for them does not take them back.
    """
    demand = demand_from(job.spec, state)
    if job.resize_to is not None:
        demand = demand.at_most(job.resize_to)
    if not job.avoid:
        return demand
    never = frozenset(item.node_id for item in job.avoid if _never(item, state.nodes))
    avoid = frozenset(item.node_id for item in job.avoid) - never
    return replace(demand, avoid=avoid, never=never)


def need_of(state: State, job_id: str) -> Demand:
    """The demand that GPUs reserved for a job must meet, with CPUs and memory of each."""
    return demand_from(state.jobs[job_id].spec, state)


def demand_from(spec: JobSpec, state: State) -> Demand:
    """The demand of a spec here: its team counts only where nodes may not mix teams."""
    demand = demand_of(spec)
    return demand if state.mix_from is None else replace(demand, team=spec.team)


def _never(item: Avoid, nodes: dict[str, Node]) -> bool:
    """Whether the job must not go there: not if the node was admitted again since."""
    node = nodes.get(item.node_id)
    return item.required and node is not None and node.admission == item.admission
