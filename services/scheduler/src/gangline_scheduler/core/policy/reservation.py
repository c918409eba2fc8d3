"""Reservations: when and where a gang that has waited too long will start.

Running gangs are taken away in the order of their expected ends until the waiting gang fits: that
is its start and its place. A node that failed is expected back, empty, `node_return` after that. So
a gang that lost one of its nodes keeps its other GPUs for so long. If the node never comes back, no
GPU waits longer for it. Until then a job may use those GPUs only if it is expected to end before
the start (backfill); a longer one gets the GPUs that the reserved gang leaves over. So only wrong
estimates delay a reserved gang, and no GPU that can be used idles for it.

`easy` reserves for the first gang that waited too long, `conservative` for the first `DEPTH`. Each
gets the GPUs that those before it leave, until they start and until they end.
Cost: O(running gangs + placements tried from the moment on at which enough GPUs are free). A gang
that would not fit after the last end either costs one placement (queue_pass.py), once until a node
joins or fails, or a reservation of freed GPUs ends (searches.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import merge
from typing import Literal

from gangline_scheduler.core.free_node import FreeNode, empty_of
from gangline_scheduler.core.model import Demand, Job
from gangline_scheduler.core.policy.placement import Placement
from gangline_scheduler.core.policy.statement import Snapshot, Statement
from gangline_scheduler.core.state import State

Mode = Literal["off", "easy", "conservative"]
DEPTH: dict[Mode, int] = {"off": 0, "easy": 1, "conservative": 10}

End = tuple[datetime, str, Job]
"""A running gang with its expected end, and a key for gangs that end at the same time."""
Ends = Sequence[End]
"""Running gangs, the one that ends first comes first."""
Returns = Sequence[tuple[datetime, FreeNode]]
"""Nodes that are expected back, each with when."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """The reservation of a job from `start` on: its placement, and GPUs by node that are kept.

    `left`: GPUs that are free on its nodes once it has started. `claim`: its team is owed the GPUs,
    and gangs are stopped for it (claims.py).
    """

    job_id: str
    start: datetime
    placement: Placement
    kept: tuple[tuple[str, int], ...]
    left: tuple[tuple[str, int], ...] = ()
    claim: bool = False

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes that it will run on."""
        return frozenset(part.node_id for part in self.placement.parts)


Made = Sequence[tuple[datetime, Reservation]]
"""Earlier reservations, each with the expected end of its job."""
_Change = tuple[datetime, str, Job | FreeNode | None]


def reserve(
    job_id: str,
    demand: Demand,
    snapshot: Snapshot,
    ends: Ends,
    now: datetime,
    *,
    made: Made = (),
    kept: Snapshot | None = None,
    returns: Returns = (),
) -> Reservation | None:
    """The earliest start; None when the gang would not fit even after the last end.

    `snapshot`: what is free; `kept`: the same without what is kept for those `made` before.
    """
    later = snapshot.copy()
    trial = Statement(later)
    found, start = _place(demand, later, made, now), now
    others: list[_Change] = [(end, item.job_id, None) for end, item in made]
    others += [(at, node.node_id, node) for at, node in returns]
    others.sort(key=_when)
    for at, _, change in merge(ends, others, key=_when):
        if found is not None:
            break
        if isinstance(change, FreeNode):
            later.free.put(change)
        elif change is not None:
            trial.evict(change)
        start = max(now, at)
        if later.free_gpus >= (demand.fewest or demand.gpus):
            found = _place(demand, later, made, start)
    if found is None:
        return None
    left = tuple((part.node_id, _free(later, part.node_id)) for part in found.parts)
    return Reservation(job_id, start, found, _kept(left, kept or snapshot), left)


def returning(state: State, now: datetime, within: timedelta) -> Returns:
    """The nodes that failed less than so long ago, as if nothing ran there, and when it is over."""
    found: list[tuple[datetime, FreeNode]] = []
    for node_id in state.failed:
        node = state.nodes[node_id]
        if not node.info.gpus or node.down_at is None:
            continue
        if not node.kept_off and now < node.down_at + within:
            whole = empty_of(node, levels=state.levels, mix_from=state.mix_from)
            found.append((node.down_at + within, whole))
    return found


def _when(change: _Change) -> tuple[datetime, str]:
    return change[:2]


def _place(demand: Demand, later: Snapshot, made: Made, at: datetime) -> Placement | None:
    """Where the gang goes at a time, beside what was reserved before; taken, if it fits."""
    before = []
    for node_id, gpus in _out_of_reach(later, made, at).items():
        before.append(later.free.get(node_id))
        later.keep({node_id: gpus})
    found = Statement(later).place(demand)
    if found is None:
        for node in before:
            if node is not None:
                later.free.put(node)
    return found


def _out_of_reach(later: Snapshot, made: Made, at: datetime) -> dict[str, int]:
    """GPUs that a gang that starts then may not have: what others have, or will have soon."""
    open_to: dict[str, int] = {}
    for end, item in made:
        left = dict(item.left)
        for part in item.placement.parts if at < end else ():
            here = open_to.get(part.node_id, _free(later, part.node_id))
            started = at >= item.start
            open_to[part.node_id] = (
                here - len(part.gpus) if started else min(here, left[part.node_id])
            )
    return {name: _free(later, name) - max(0, gpus) for name, gpus in open_to.items()}


def _kept(left: Sequence[tuple[str, int]], snapshot: Snapshot) -> tuple[tuple[str, int], ...]:
    """Free GPUs that a job that runs past the start may not take: all but what will be left."""
    surplus = ((node_id, _free(snapshot, node_id) - gpus) for node_id, gpus in left)
    return tuple((node_id, gpus) for node_id, gpus in surplus if gpus > 0)


def _free(snapshot: Snapshot, node_id: str) -> int:
    node = snapshot.free.get(node_id)
    return node.size if node is not None else 0
