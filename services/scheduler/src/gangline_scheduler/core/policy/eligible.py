"""Which waiting jobs may hold others back: those that would start if only GPUs were given back.

A job holds others back if a team may not borrow for its sake, if GPUs are reserved for it, or if
running gangs are stopped or do not grow for it. In a strict order the first job holds others back
too. It may do so only if it is eligible:
1. the nodes that take gangs could hold it if nothing ran there (not those that are cordoned,
   drained or lost; a lost one that is expected back counts for a reservation, reservation.py), and
2. its team, and each team above it, may have its GPUs now: limits, GPU models, budgets (share.py).
Its written reasons and its place in the queue do not matter.

Cost: one placement for each shape of a job; that a shape is too large for the cluster is remembered
until a node joins (searches.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline_scheduler.core.allocate import next_demand
from gangline_scheduler.core.model import Demand, Job
from gangline_scheduler.core.policy.placement import lacking, most_room, place
from gangline_scheduler.core.state import State

if TYPE_CHECKING:
    from gangline_scheduler.core.policy.share import Ceilings


def eligible(state: State, ceilings: Ceilings, job: Job) -> bool:
    """Whether a job that waits may hold others back; see the module."""
    demand = ceilings.within(state, job, next_demand(job, state))
    return demand is not None and fits_empty_cluster(state, demand)


def fits_empty_cluster(state: State, demand: Demand) -> bool:
    """Whether the nodes that take gangs could hold the gang if nothing else ran there."""
    empty, least = state.empty, demand.least()
    if empty.searches.fits(least):
        return True
    if too_large(state, least):
        return False
    if place(least, empty, state.levels) is not None:
        empty.searches.found(least)
        return True
    empty.searches.failed(least, lacking(least, empty, state.levels))
    return False


def too_large(state: State, least: Demand) -> bool:
    """Whether it was found that nothing could hold it, and no node has joined that could since."""
    empty = state.empty
    return empty.searches.fails(least, lambda node_id: most_room(least, empty, node_id))
