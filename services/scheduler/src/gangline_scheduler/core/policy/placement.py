"""Where a gang goes: whole or not at all, as close together as it can, by best fit.

1. For each accepted GPU model, best first (none named: all models together):
2. on one node, if one holds the gang: the one with the least free; else
3. for each level from the closest (NVLink domain, rack, block, cluster), up to the required one:
   among the domains that hold the whole gang, the one that is left with the least;
4. within it the largest domains of the next level whole, and the rest in the one it fits best,
   down to the nodes: the gang spans the fewest racks and nodes.
Nodes with a loopback address are a cluster by themselves on each machine (`island_of`).
A node has whole workers of a gang (`ranks_in`), so a worker never crosses a node. GPUs of a node
that are too few for one more worker are not used.
Nodes to avoid are left out at first, and considered when nothing else fits, unless required.
An elastic gang takes the most GPUs it can of those that it may have, down to its fewest.

Best fit leaves the largest domains whole for the next large gang. Cost: O(racks) on one node,
else O(domains), and O(n log n) for the n nodes of the domain taken.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from gangline_scheduler.core.free import FreeIndex
from gangline_scheduler.core.free_node import FreeNode, rack_level
from gangline_scheduler.core.model import CLUSTER, NODE, Demand

_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Part:
    """GPU indexes of one node, in order."""

    node_id: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """A gang's parts in order of their ranks, and the closest level that holds them all."""

    parts: tuple[Part, ...]
    level: str

    @property
    def gpus(self) -> int:
        """GPUs of the gang: fewer than asked for, if it is elastic."""
        return sum(len(part.gpus) for part in self.parts)


class Placer(Protocol):
    """A placement policy."""

    def __call__(
        self, demand: Demand, free: FreeIndex, levels: tuple[str, ...], /
    ) -> Placement | None:
        """Where the whole gang goes; None when it does not fit. Changes nothing."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The GPUs of one node that a gang could take."""

    node: FreeNode
    gpus: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many."""
        return len(self.gpus)


def place(demand: Demand, free: FreeIndex, levels: tuple[str, ...]) -> Placement | None:
    """The default policy; see the module."""
    whole = _place(demand, free, levels)
    if whole is not None or demand.fewest is None:
        return whole
    counts = demand.smaller()
    low, high, best = 0, bisect_right(counts, free.total()) - 1, None
    while low <= high:
        middle = (low + high + 1) // 2 if best is not None else low
        found = _place(replace(demand, gpus=counts[middle]), free, levels)
        if found is None:
            if best is None:
                return None
            high = middle - 1
        else:
            best, low = found, middle + 1
    return best


def _place(demand: Demand, free: FreeIndex, levels: tuple[str, ...]) -> Placement | None:
    if demand.avoid:
        found = _place_outside(demand, free, levels, demand.never | demand.avoid)
        if found is not None:
            return found
    return _place_outside(demand, free, levels, demand.never)


def _place_outside(
    demand: Demand, free: FreeIndex, levels: tuple[str, ...], skip: frozenset[str]
) -> Placement | None:
    def holds(node: FreeNode) -> bool:
        return node.node_id not in skip and room(demand, node, model) >= demand.gpus

    rack_at = rack_level(levels)
    for model in models(demand):
        if free.total(model) < demand.gpus:
            continue
        node = free.tightest(model, demand.gpus, holds, rack_at)
        if node is not None:
            return Placement((Part(node.node_id, node.indexes(model)[: demand.gpus]),), NODE)
        for number, level in reached(demand, levels):
            whole = level == CLUSTER
            found = _in_level(demand, free, model, number, skip, whole=whole)
            if found is not None:
                return Placement(found, level)
    return None


def lacking(demand: Demand, free: FreeIndex, levels: tuple[str, ...]) -> int:
    """GPUs that are missing where there is most room for the gang, of all that it may span."""
    widest = [number for number, _ in reached(demand, levels)]
    number = widest[-1] if widest else 0
    most = 0
    for model in models(demand):
        rooms: dict[str, int] = {}
        for node in free.some(model):
            if node.node_id not in demand.never:
                domain = node.path[number]
                rooms[domain] = rooms.get(domain, 0) + room(demand, node, model)
        most = max(most, *rooms.values(), 0)
    return (demand.fewest or demand.gpus) - most


def most_room(demand: Demand, free: FreeIndex, node_id: str) -> int | None:
    """Ranks of the gang that a node holds; 0 where it must not go, None: no such node."""
    node = free.get(node_id)
    if node is None:
        return None
    if node_id in demand.never:
        return 0
    return max(room(demand, node, model) for model in models(demand))


def reached(demand: Demand, levels: tuple[str, ...]) -> list[tuple[int, str]]:
    """The levels above one node that a gang may span, closest first, as (index of path, name)."""
    known = [*enumerate(levels, start=1), (len(levels) + 1, CLUSTER)]
    if demand.widest == CLUSTER:
        return known
    names = [name for _, name in known]
    return known[: names.index(demand.widest) + 1] if demand.widest in names else []


def models(demand: Demand) -> tuple[str, ...]:
    """The accepted GPU models, one choice after the other; "" for any."""
    return demand.gpu_types or ("",)


def room(demand: Demand, node: FreeNode, model: str) -> int:
    """How many of the gang's ranks a node can hold, in whole workers."""
    most = len(node.indexes(model))
    if not most or (demand.labels and not set(demand.labels) <= set(node.labels)):
        return 0
    if not node.is_open_to(demand.team):
        return 0
    return ranks_in(demand, most, node.cpus, node.memory_gb)


def ranks_in(demand: Demand, gpus: int, cpus: float, memory_gb: float) -> int:
    """How many of the gang's ranks so much of one node holds, in whole workers."""
    if demand.cpus_per_gpu > 0:
        gpus = _shares(cpus, demand.cpus_per_gpu, gpus)
    if demand.memory_per_gpu_gb > 0:
        gpus = _shares(memory_gb, demand.memory_per_gpu_gb, gpus)
    return demand.whole(gpus)


def _shares(amount: float, each: float, most: int) -> int:
    """How many times an amount holds `each`, from 0 to `most`: a share may be tiny."""
    return int(min(most, max(0.0, (amount + _EPSILON) / each)))


def capacities_of(demand: Demand, nodes: Iterable[FreeNode], model: str) -> list[Capacity]:
    """The nodes that can hold some of the gang."""
    return [
        Capacity(node, node.indexes(model)[:size])
        for node in nodes
        if (size := room(demand, node, model)) > 0
    ]


def _in_level(
    demand: Demand, free: FreeIndex, model: str, number: int, skip: frozenset[str], *, whole: bool
) -> tuple[Part, ...] | None:
    sums = free.sums(number, model)
    if whole:  # the rest of the cluster, beside loopback interfaces
        sums = {"": free.total(model) - sum(sums.values()), **sums}
    for _, name in sorted((count, name) for name, count in sums.items() if count >= demand.gpus):
        nodes = free.members(name) if name else free.some(model)
        allowed = (node for node in nodes if node.node_id not in skip and node.path[number] == name)
        found = capacities_of(demand, allowed, model)
        if sum(item.size for item in found) >= demand.gpus:
            return spread(found, demand.gpus, number)
    return None


def spread(rooms: list[Capacity], gpus: int, level: int) -> tuple[Part, ...]:
    """The parts of a gang that spans a domain of this level, in order of their ranks."""
    chosen = _fill(rooms, gpus, level)
    chosen.sort(key=lambda item: (*reversed(item[0].node.path), item[0].node.node_id))
    return tuple(Part(item.node.node_id, item.gpus[:count]) for item, count in chosen)


def _fill(rooms: list[Capacity], gpus: int, level: int) -> list[tuple[Capacity, int]]:
    """The largest parts whole while they are too small for the rest; then the tightest one."""
    groups: dict[str, list[Capacity]] = {}
    for item in rooms:
        groups.setdefault(item.node.path[level - 1], []).append(item)
    sized = [(sum(item.size for item in group), name) for name, group in groups.items()]
    sized.sort(key=lambda entry: (-entry[0], entry[1]))
    chosen: list[tuple[Capacity, int]] = []
    at = 0
    while sized[at][0] < gpus:
        chosen += [(item, item.size) for item in groups[sized[at][1]]]
        gpus -= sized[at][0]
        at += 1
    holding = [entry for entry in sized[at:] if entry[0] >= gpus]
    _, name = min(holding)
    if level == 1:
        return [*chosen, (groups[name][0], gpus)]
    return [*chosen, *_fill(groups[name], gpus, level - 1)]
