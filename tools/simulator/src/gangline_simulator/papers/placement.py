"""The placements of the simulators whose published figures the replays reproduce.

They count GPUs of equal nodes and know no topology: what goes live is policy/placement.py.

`best_fit`, of the Philly simulators: a gang that fits one node goes to the node with the fewest
free GPUs that are enough. A larger one goes to wholly idle nodes, and its rest to the next most
free one. Of equal nodes the first. `first_fit`, of Muri's: the first node with room; a larger gang
on the first idle nodes, its rest on the first other node that holds it. Of a gang with workers of
several GPUs a node counts for the whole workers that it holds.

Cost: O(nodes log nodes), O(nodes) for `first_fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gangline_scheduler.core.free import FreeIndex
from gangline_scheduler.core.model import CLUSTER, NODE, Demand
from gangline_scheduler.core.policy.placement import Part, Placement

FreeNode = tuple[str, int]
"""A node and its free GPUs."""
Share = tuple[str, int]
"""A node and the gang's GPUs there."""
Fit = Callable[[int, Sequence[FreeNode], int], tuple[Share, ...] | None]
"""GPUs, nodes in their order, GPUs of one node: the shares in rank order; None: it does not fit."""


def best_fit(gpus: int, nodes: Sequence[FreeNode], size: int) -> tuple[Share, ...] | None:
    """See the module."""
    if gpus <= size:
        fitting = [(free, name) for name, free in nodes if free >= gpus]
        return ((min(fitting)[1], gpus),) if fitting else None
    whole, rest = divmod(gpus, size)
    freest = sorted(nodes, key=lambda node: (-node[1], node[0]))[: whole + 1]
    if len(freest) < whole + bool(rest) or any(free < size for _, free in freest[:whole]):
        return None
    shares = [(name, size) for name, _ in freest[:whole]]
    if rest:
        name, free = freest[whole]
        if free < rest:
            return None
        shares.append((name, rest))
    return tuple(shares)


def first_fit(gpus: int, nodes: Sequence[FreeNode], size: int) -> tuple[Share, ...] | None:
    """See the module."""
    if gpus <= size:
        found = next((name for name, free in nodes if free >= gpus), None)
        return ((found, gpus),) if found is not None else None
    whole, rest = divmod(gpus, size)
    idle = [name for name, free in nodes if free == size][:whole]
    if len(idle) < whole:
        return None
    shares = [(name, size) for name in idle]
    if rest:
        other = next((name for name, free in nodes if free >= rest and name not in idle), None)
        if other is None:
            return None
        shares.append((other, rest))
    return tuple(shares)


def in_workers(
    fit: Fit, demand: Demand, nodes: Sequence[FreeNode], size: int
) -> tuple[Share, ...] | None:
    """The shares of a gang whose nodes hold whole workers of it."""
    each = demand.whole(size)
    whole = [(name, demand.whole(free)) for name, free in nodes]
    return fit(demand.gpus, whole, each) if each else None


@dataclass(frozen=True, slots=True)
class EqualNodes:
    """A placer (policy/placement.py) for nodes of `size` GPUs each."""

    fit: Fit = best_fit
    size: int = 8

    def __call__(
        self,
        demand: Demand,
        free: FreeIndex,
        levels: tuple[str, ...],  # noqa: ARG002 - the port's
        /,
    ) -> Placement | None:
        """Where the whole gang goes; None when it does not fit."""
        if free.total() < demand.gpus:
            return None
        shares = in_workers(self.fit, demand, free_nodes_of(free), self.size)
        return None if shares is None else placement_of(shares, free)


def free_nodes_of(free: FreeIndex) -> list[FreeNode]:
    """The nodes with free GPUs, by name."""
    return sorted((node.node_id, node.size) for node in free.nodes() if node.size)


def placement_of(shares: Sequence[Share], free: FreeIndex) -> Placement | None:
    """The first free GPUs of each node; None when a node has too few."""
    parts = []
    for name, count in shares:
        node = free.get(name)
        if node is None or node.size < count:
            return None
        parts.append(Part(name, node.indexes("")[:count]))
    return Placement(tuple(parts), NODE if len(parts) == 1 else CLUSTER)
