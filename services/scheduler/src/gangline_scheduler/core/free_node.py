"""The free resources of one node, and its domain at each level of the topology."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gangline_scheduler.core.model import Node, NodeAllocation
from gangline_scheduler.core.values import replace
from gangline_schemas.isolation import Isolation

LEVELS = ("nvlink", "rack", "block")
"""The levels between one node and the whole cluster, closest first."""


@dataclass(frozen=True, slots=True)
class FreeNode:
    """The free resources of a schedulable node: GPU indexes by model, CPUs, memory in GB.

    `path`: its domain at each level, from the node itself to the whole cluster, as names that are
    unique in the cluster (`path_of`). `gpus`: (model in lower case, free indexes in order).
    `home`: which of `path` is its rack (the widest level below the cluster where there are no
    racks). `alone`: it holds gangs of one team at a time, and `teams` are then those of its gangs,
    once for each.
    """

    node_id: str
    path: tuple[str, ...]
    gpus: tuple[tuple[str, tuple[int, ...]], ...]
    cpus: float
    memory_gb: float
    labels: tuple[tuple[str, str], ...] = ()
    home: int = field(default=0, repr=False, compare=False)
    alone: bool = False
    teams: tuple[str, ...] = ()

    @property
    def rack(self) -> str:
        """The domain by which nodes with equally many free GPUs are kept."""
        return self.path[self.home]

    @property
    def size(self) -> int:
        """Free GPUs of all models."""
        return sum(len(indexes) for _, indexes in self.gpus)

    def indexes(self, model: str) -> tuple[int, ...]:
        """Free GPU indexes of a model ("": of all), in order."""
        if model:
            return next((indexes for name, indexes in self.gpus if name == model), ())
        if len(self.gpus) == 1:
            return self.gpus[0][1]
        return tuple(sorted(index for _, indexes in self.gpus for index in indexes))

    def is_open_to(self, team: str, back: Iterable[NodeAllocation] = ()) -> bool:
        """Whether no other team has a gang here, once these have given back their GPUs."""
        if not self.alone:
            return True
        staying = list(self.teams)
        for allocation in back:
            if allocation.team in staying:
                staying.remove(allocation.team)
        return all(name == team for name in staying)

    def is_within(self, other: FreeNode) -> bool:
        """Whether it gives no gang more room than the other, which is the same node."""
        if self.cpus > other.cpus or self.memory_gb > other.memory_gb:
            return False
        if (self.path, self.labels, self.alone) != (other.path, other.labels, other.alone):
            return False
        if not set(self.teams) >= set(other.teams):
            return False
        return all(
            set(indexes) <= set(other.indexes(model)) for model, indexes in self.gpus if indexes
        )

    def less(self, allocation: NodeAllocation) -> FreeNode:
        """After a gang took this. GPUs that are not free are left out."""
        gone = frozenset(allocation.gpus)
        gpus = tuple(
            (name, tuple(index for index in indexes if index not in gone))
            for name, indexes in self.gpus
        )
        return replace(
            self,
            gpus=gpus,
            cpus=self.cpus - allocation.cpus,
            memory_gb=self.memory_gb - allocation.memory_gb,
            teams=(*self.teams, allocation.team) if self.alone and allocation.team else self.teams,
        )

    def more(self, allocation: NodeAllocation, node: Node) -> FreeNode:
        """After a gang of this node gave this back."""
        back = set(allocation.gpus)
        free = {model: set(indexes) for model, indexes in self.gpus}
        for index, model in node.gpu_models:
            if index in back:
                free.setdefault(model, set()).add(index)
        teams = list(self.teams)
        if allocation.team in teams:
            teams.remove(allocation.team)
        return replace(
            self,
            teams=tuple(teams),
            gpus=tuple((model, tuple(sorted(indexes))) for model, indexes in free.items()),
            cpus=self.cpus + allocation.cpus,
            memory_gb=self.memory_gb + allocation.memory_gb,
        )


def empty_of(
    node: Node, *, levels: tuple[str, ...] = LEVELS, mix_from: Isolation | None = None
) -> FreeNode:
    """The free resources of a node if no gang ran there.

    `mix_from`: nodes below this isolation hold one team's gangs at a time; None: all mix them.
    """
    by_model: dict[str, list[int]] = {}
    for index, model in node.gpu_models:
        by_model.setdefault(model, []).append(index)
    return FreeNode(
        node_id=node.info.node_id,
        path=path_of(node, levels),
        gpus=tuple((model, tuple(indexes)) for model, indexes in by_model.items()),
        cpus=node.info.cpus,
        memory_gb=node.info.memory_gb,
        labels=node.labels,
        home=rack_level(levels),
        alone=mix_from is not None and node.info.isolation.strength < mix_from.strength,
    )


def left_on(empty: FreeNode, node: Node) -> FreeNode:
    """The free resources of a node whose `empty_of` is known."""
    allocations = [allocation for _, allocation in node.allocations]
    taken = {index for allocation in allocations for index in allocation.gpus}
    return replace(
        empty,
        gpus=tuple(
            (model, tuple(index for index in indexes if index not in taken))
            for model, indexes in empty.gpus
        ),
        cpus=empty.cpus - sum(allocation.cpus for allocation in allocations),
        memory_gb=empty.memory_gb - sum(allocation.memory_gb for allocation in allocations),
        teams=tuple(allocation.team for allocation in allocations) if empty.alone else (),
    )


def rack_level(levels: tuple[str, ...]) -> int:
    """Which entry of a path is the rack: the widest level where there are no racks."""
    return levels.index("rack") + 1 if "rack" in levels else len(levels)


def island_of(node: Node) -> str:
    """Equal for nodes that reach each other: "" of the network, else a loopback interface.

    No other domain has such a name, since labels have no control characters.
    """
    return "" if node.info.loopback is None else f"loopback\n{node.info.loopback}"


def path_of(node: Node, levels: tuple[str, ...]) -> tuple[str, ...]:
    """The node's domain at each level, closest first: itself, `levels`, the cluster.

    The cluster is "", or the loopback interface that alone leads to the node.
    rack and block are fields of the node, any other level is a label. A node that does not say
    its domain at a level is one by itself there. Names hold those of the wider domains.
    """
    info, name = node.info, island_of(node)
    path = [name]
    known = dict(node.labels) | {"rack": info.rack, "block": info.block}
    for level in reversed(levels):
        own = known.get(level)
        if own is None:
            path.append(info.node_id)
            continue
        name = f"{name}/{own}" if name else own
        path.append(name)
    return (info.node_id, *reversed(path))
