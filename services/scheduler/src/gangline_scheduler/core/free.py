"""Free resources of each node, indexed so that a placement looks at few nodes.

Kept for each GPU model ("" stands for all together):
- nodes by the number of their free GPUs, and among these by rack: the best fit on one node, in
  the fullest rack, is a lookup;
- the free GPUs of each domain (NVLink domain, rack, block): a domain that is too small for a gang
  is never opened.

`copy` shares everything and costs O(distinct counts + domains + nodes) pointers; what is written
afterwards is copied first. `put` and `pop` cost O(levels) and the copy of the nodes of one rack.
`branch` costs nothing until it is written, then all that but the nodes; its base must not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from gangline_bus.overlay import Overlay
from gangline_scheduler.core.free_node import FreeNode
from gangline_scheduler.core.searches import Searches

_THOUSANDTHS = 1000


class FreeIndex:
    """The schedulable nodes and what is free on them."""

    def __init__(self, nodes: Iterable[FreeNode] = ()) -> None:
        self._nodes: dict[str, FreeNode] = {}
        self._by_count: dict[tuple[str, int], dict[str, dict[str, None]]] = {}
        self._sums: dict[tuple[int, str], dict[str, int]] = {}
        self._members: dict[str, dict[str, None]] = {}
        self._totals: dict[str, int] = {}
        self._resources = (0, 0)
        self._largest = 0
        self._own: set[tuple[str, int] | tuple[str, int, str]] = set()
        self._own_members: set[str] = set()
        self._shared = False
        self.searches = Searches()
        for node in nodes:
            self.put(node)

    def copy(self) -> FreeIndex:
        """An index of the same nodes that changes by itself; of a branch, one of the same base."""
        other = FreeIndex.__new__(FreeIndex)
        other._nodes = self._nodes.copy()  # noqa: SLF001 - the same class
        other._by_count = dict(self._by_count)  # noqa: SLF001
        other._sums = {key: dict(sums) for key, sums in self._sums.items()}  # noqa: SLF001
        other._members = dict(self._members)  # noqa: SLF001
        other._totals = dict(self._totals)  # noqa: SLF001
        other._largest, other._resources = self._largest, self._resources  # noqa: SLF001
        other._own, other._own_members = set(), set()  # noqa: SLF001
        other._shared = False  # noqa: SLF001
        other.searches = Searches()
        self._own, self._own_members = set(), set()
        return other

    def branch(self) -> FreeIndex:
        """A copy to use for as long as this one stays as it is."""
        other = FreeIndex.__new__(FreeIndex)
        other._nodes = Overlay(self._nodes)  # noqa: SLF001
        other._by_count, other._sums = self._by_count, self._sums  # noqa: SLF001
        other._members, other._totals = self._members, self._totals  # noqa: SLF001
        other._largest, other._resources = self._largest, self._resources  # noqa: SLF001
        other._own, other._own_members = set(), set()  # noqa: SLF001
        other._shared = True  # noqa: SLF001
        # Searches before its first change hold for its base too.
        other.searches = self.searches
        return other

    def _unshare(self) -> None:
        """A branch is written for the first time."""
        self._by_count, self._members = dict(self._by_count), dict(self._members)
        self._sums = {key: dict(sums) for key, sums in self._sums.items()}
        self._totals = dict(self._totals)
        self._shared = False
        self.searches = self.searches.split()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FreeIndex) and self._nodes == other._nodes

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._nodes

    def get(self, node_id: str) -> FreeNode | None:
        """One node, None when it takes no gangs."""
        return self._nodes.get(node_id)

    def nodes(self) -> Iterator[FreeNode]:
        """Every node, full ones too."""
        return iter(self._nodes.values())

    def total(self, model: str = "") -> int:
        """Free GPUs of a model ("": all) in all."""
        return self._totals.get(model, 0)

    @property
    def resources(self) -> tuple[float, float]:
        """Free CPUs and GB in all; the same whatever the order in which nodes came."""
        cpus, memory_gb = self._resources
        return cpus / _THOUSANDTHS, memory_gb / _THOUSANDTHS

    def models(self) -> list[str]:
        """The GPU models of the nodes, in lower case."""
        return sorted({model for node in self._nodes.values() for model, _ in node.gpus})

    def sums(self, level: int, model: str) -> dict[str, int]:
        """Free GPUs of each domain at a level (an index of `path`).

        Single nodes are left out, and the cluster ("").
        """
        return self._sums.get((level, model), {})

    def members(self, domain: str) -> list[FreeNode]:
        """The nodes of a domain; of the cluster ("") all."""
        if not domain:
            return list(self._nodes.values())
        return [self._nodes[node_id] for node_id in self._members.get(domain, ())]

    def some(self, model: str) -> Iterator[FreeNode]:
        """The nodes with any free GPU of a model ("": any), in no order that matters."""
        for count in range(1, self._largest + 1):
            for names in self._by_count.get((model, count), {}).values():
                for name in names:
                    yield self._nodes[name]

    def tightest(
        self, model: str, gpus: int, fits: Callable[[FreeNode], bool], rack_at: int
    ) -> FreeNode | None:
        """The node with the fewest free GPUs that holds `gpus` and `fits`.

        Of equal ones the one in the fullest rack, so that whole racks stay free; then by name.
        Cost: O(racks with such nodes), and the nodes of the rack taken.
        """
        sums = self._sums.get((rack_at, model), {})
        for count in range(gpus, self._largest + 1):
            racks = self._by_count.get((model, count))
            if not racks:
                continue
            by_room = sorted((sums.get(rack, 0), rack) for rack in racks)
            for _, equal in groupby(by_room, key=itemgetter(0)):
                found = self._first([racks[rack] for _, rack in equal], fits)
                if found is not None:
                    return found
        return None

    def _first(
        self, racks: list[dict[str, None]], fits: Callable[[FreeNode], bool]
    ) -> FreeNode | None:
        """The node that fits with the smallest name. The very smallest mostly does."""
        smallest = self._nodes[min(min(names) for names in racks)]
        if fits(smallest):
            return smallest
        names = (name for names in racks for name in names)
        fitting = [name for name in names if fits(self._nodes[name])]
        return self._nodes[min(fitting)] if fitting else None

    def put(self, node: FreeNode) -> None:
        """Add a node, or replace its free resources."""
        if self._shared:
            self._unshare()
        before = self._nodes.get(node.node_id)
        if self.searches:
            self.searches.shrank()
            if before is None or not node.is_within(before):
                self.searches.grew(node.node_id)
        if before is not None and before.path == node.path and before.home == node.home:
            self._count(before, -1)
        else:
            if before is not None:
                self.pop(node.node_id)
            self._join(node)
        self._nodes[node.node_id] = node
        self._count(node, 1)

    def pop(self, node_id: str) -> None:
        """Remove a node; nothing when it is not there."""
        if self._shared:
            self._unshare()
        node = self._nodes.pop(node_id, None)
        if node is None:
            return
        self.searches.shrank()
        self._count(node, -1)
        for domain in node.path[1:]:
            if domain not in {node_id, ""}:
                del self._writable(domain)[node_id]
                if not self._members[domain]:
                    self._forget(domain)

    def _join(self, node: FreeNode) -> None:
        for domain in node.path[1:]:
            if domain not in {node.node_id, ""}:
                self._writable(domain)[node.node_id] = None

    def _writable(self, domain: str) -> dict[str, None]:
        if domain not in self._own_members:
            self._own_members.add(domain)
            self._members[domain] = dict(self._members.get(domain, {}))
        return self._members[domain]

    def _forget(self, domain: str) -> None:
        del self._members[domain]
        self._own_members.discard(domain)
        for sums in self._sums.values():
            sums.pop(domain, None)

    def _count(self, node: FreeNode, sign: int) -> None:
        cpus, memory_gb = self._resources
        self._resources = (
            cpus + sign * round(node.cpus * _THOUSANDTHS),
            memory_gb + sign * round(node.memory_gb * _THOUSANDTHS),
        )
        self._count_model(node, "", node.size, sign)
        for model, indexes in node.gpus:
            self._count_model(node, model, len(indexes), sign)

    def _count_model(self, node: FreeNode, model: str, count: int, sign: int) -> None:
        key = (model, count)
        if key not in self._own:
            self._own.add(key)
            self._by_count[key] = dict(self._by_count.get(key, {}))
        racks, rack = self._by_count[key], node.rack
        if (*key, rack) not in self._own:
            self._own.add((*key, rack))
            racks[rack] = dict(racks.get(rack, {}))
        if sign > 0:
            racks[rack][node.node_id] = None
            self._largest = max(self._largest, count)
        else:
            del racks[rack][node.node_id]
            if not racks[rack]:
                del racks[rack]
                self._own.discard((*key, rack))
        self._totals[model] = self._totals.get(model, 0) + sign * count
        for level, domain in enumerate(node.path[1:], start=1):
            if domain not in {node.node_id, ""}:
                sums = self._sums.setdefault((level, model), {})
                sums[domain] = sums.get(domain, 0) + sign * count
