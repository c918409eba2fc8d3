"""Where a gang goes: whole or not at all, as close together as it can, by best fit.

1. For each accepted GPU type, best first (none named: all types together):
2. for each level from the closest (node, rack, block, cluster), up to the required one:
3. among the domains of that level that hold the whole gang, the one that is left with the least;
   within it the nodes with the most room first, and the rest on the node that it fills best.
Nodes to avoid are left out at first, and considered when nothing else fits, unless required.

Best fit leaves the largest blocks whole for the next large gang. Cost: O(nodes) per level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from gangline_scheduler.model import FreeNode, Job, Node

Level = Literal["node", "rack", "block", "cluster"]
LEVELS: tuple[Level, ...] = ("node", "rack", "block", "cluster")
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Demand:
    """What one gang asks for. Equal demands fit or fail together."""

    gpus: int
    gpu_types: tuple[str, ...] = ()
    cpus_per_gpu: float = 0.0
    memory_per_gpu_gb: float = 0.0
    widest: Level = "cluster"
    avoid: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Part:
    """GPU indexes of one node, in order."""

    node_id: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Room:
    node: FreeNode
    gpus: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.gpus)


def demand_of(job: Job, nodes: Mapping[str, Node]) -> Demand:
    """What a job's next gang asks for."""
    need, topology = job.spec.resources, job.spec.topology
    preferred, never = set(), set()
    for item in job.avoid:
        node = nodes.get(item.node_id)
        if item.required and node is not None and node.admission == item.admission:
            never.add(item.node_id)
        else:
            preferred.add(item.node_id)
    return Demand(
        gpus=need.gpus,
        gpu_types=need.gpu_type,
        cpus_per_gpu=need.cpus_per_gpu,
        memory_per_gpu_gb=need.memory_per_gpu_gb,
        widest=topology.level if topology.mode == "required" else "cluster",
        avoid=frozenset(preferred),
        never=frozenset(never),
    )


def place(demand: Demand, nodes: Iterable[FreeNode]) -> tuple[Part, ...] | None:
    """The parts in order of their ranks; None when the whole gang does not fit."""
    allowed = [node for node in nodes if node.node_id not in demand.never]
    if demand.avoid:
        others = [node for node in allowed if node.node_id not in demand.avoid]
        found = _place(demand, others)
        if found is not None:
            return found
    return _place(demand, allowed)


def _place(demand: Demand, nodes: list[FreeNode]) -> tuple[Part, ...] | None:
    for accepted in type_choices(demand):
        rooms = [room for node in nodes if (room := _room(demand, node, accepted)).size > 0]
        if sum(room.size for room in rooms) < demand.gpus:
            continue
        for level in LEVELS[: LEVELS.index(demand.widest) + 1]:
            best = _tightest(_domains(rooms, level), demand.gpus)
            if best is not None:
                return _spread(best, demand.gpus)
    return None


def type_choices(demand: Demand) -> tuple[frozenset[str] | None, ...]:
    """The accepted GPU models, one choice after the other; None: any."""
    if not demand.gpu_types:
        return (None,)
    return tuple(frozenset({name.lower()}) for name in demand.gpu_types)


def capacity(demand: Demand, node: FreeNode, accepted: frozenset[str] | None) -> int:
    """How many of the gang's ranks a node can hold."""
    return _room(demand, node, accepted).size


def domain_of(node: FreeNode, level: Level) -> str:
    """The name of the node's domain at a level."""
    names: dict[Level, str] = {
        "node": node.node_id,
        "rack": f"{node.block}/{node.rack}",
        "block": node.block,
        "cluster": "",
    }
    return names[level]


def _room(demand: Demand, node: FreeNode, accepted: frozenset[str] | None) -> _Room:
    gpus = tuple(
        gpu.index for gpu in node.gpus if accepted is None or gpu.model.lower() in accepted
    )
    most = len(gpus)
    if demand.cpus_per_gpu > 0:
        most = min(most, int((node.cpus + _EPSILON) / demand.cpus_per_gpu))
    if demand.memory_per_gpu_gb > 0:
        most = min(most, int((node.memory_gb + _EPSILON) / demand.memory_per_gpu_gb))
    return _Room(node, gpus[: max(0, most)])


def _domains(rooms: list[_Room], level: Level) -> dict[str, list[_Room]]:
    found: dict[str, list[_Room]] = {}
    for room in rooms:
        found.setdefault(domain_of(room.node, level), []).append(room)
    return found


def _tightest(domains: dict[str, list[_Room]], gpus: int) -> list[_Room] | None:
    fitting = [
        (sum(room.size for room in rooms), name)
        for name, rooms in domains.items()
        if sum(room.size for room in rooms) >= gpus
    ]
    return domains[min(fitting)[1]] if fitting else None


def _spread(rooms: list[_Room], gpus: int) -> tuple[Part, ...]:
    """The fewest nodes: the largest ones whole, and the rest where it fits best."""
    left = sorted(rooms, key=lambda room: (-room.size, room.node.node_id))
    chosen: list[tuple[_Room, int]] = []
    while gpus > 0:
        holding = [room for room in left if room.size >= gpus]
        room = min(holding, key=lambda item: (item.size, item.node.node_id)) if holding else left[0]
        count = min(gpus, room.size)
        chosen.append((room, count))
        left.remove(room)
        gpus -= count
    chosen.sort(key=lambda item: (item[0].node.block, item[0].node.rack, item[0].node.node_id))
    return tuple(Part(room.node.node_id, room.gpus[:count]) for room, count in chosen)
