"""Tentative work on a snapshot of free GPUs: place gangs, evict gangs, commit or discard.

Preemption, reclaim, defragmentation, elastic resizing, reservations and what-if all try their
moves here; none has a placement of its own. Cost: that of the placements, and O(nodes touched).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gangline_scheduler.core.free import FreeIndex
from gangline_scheduler.core.free_node import FreeNode
from gangline_scheduler.core.model import Demand, Job, Node, NodeAllocation
from gangline_scheduler.core.policy.placement import Placement, Placer, models, place

NOTHING = Demand(gpus=0)
"""Of no model, and without CPUs or memory."""


class Snapshot:
    """A copy of the free GPUs for trials; `nodes` are the cluster's own."""

    def __init__(
        self,
        free: FreeIndex,
        nodes: Mapping[str, Node],
        *,
        levels: tuple[str, ...],
        placer: Placer = place,
    ) -> None:
        self.free = free.copy()
        self.nodes = nodes
        self.levels = levels
        self.placer = placer

    @property
    def free_gpus(self) -> int:
        """Free GPUs in all."""
        return self.free.total()

    def copy(self) -> Snapshot:
        """Another one that changes by itself."""
        return Snapshot(self.free, self.nodes, levels=self.levels, placer=self.placer)

    def without(self, node_ids: frozenset[str]) -> Snapshot:
        """One that lacks these nodes."""
        other = self.copy()
        for node_id in node_ids:
            other.free.pop(node_id)
        return other

    def keep(self, shares: Mapping[str, int], demand: Demand = NOTHING) -> None:
        """Leave so many of a node's free GPUs out: they are reserved for another job.

        `demand`: what that one asks for. GPUs of a model that it accepts are kept first, of each
        such model so many; and CPUs and GB with each of them.
        """
        for node_id, gpus in shares.items():
            node = self.free.get(node_id)
            if node is not None and gpus > 0:
                kept = _kept(node, gpus, models(demand))
                ranks = min(gpus, len(kept))
                cpus, memory_gb = ranks * demand.cpus_per_gpu, ranks * demand.memory_per_gpu_gb
                self.free.put(node.less(NodeAllocation(kept, cpus, memory_gb, demand.team)))

    def claim(self, node_ids: Iterable[str], team: str) -> None:
        """Let no gang of another team onto these nodes, where they do not mix teams."""
        for node_id in node_ids:
            node = self.free.get(node_id)
            if node is not None and node.alone:
                self.free.put(node.less(NodeAllocation((), 0.0, 0.0, team)))

    def take(self, demand: Demand, placement: Placement) -> list[FreeNode]:
        """Take the GPUs of a placed gang; the nodes as they were before, those it knows."""
        before: list[FreeNode] = []
        for part in placement.parts:
            node = self.free.get(part.node_id)
            if node is not None:
                before.append(node)
                self.free.put(node.less(NodeAllocation.of(part.gpus, demand, demand.team)))
        return before


class Statement:
    """A series of moves on one snapshot. Commit it, or discard it and nothing has happened."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._before: list[FreeNode] = []
        self.placed: list[tuple[Demand, Placement]] = []

    def place(self, demand: Demand) -> Placement | None:
        """Where the whole gang goes; None, and nothing taken, when it does not fit."""
        found = self._snapshot.placer(demand, self._snapshot.free, self._snapshot.levels)
        if found is None:
            return None
        taken = self._snapshot.take(demand, found)
        if len(taken) != len(found.parts):
            raise ValueError("a placement names a node that is not in the snapshot")
        self._before += taken
        self.placed.append((demand, found))
        return found

    def evict(self, job: Job) -> None:
        """Give back the GPUs of the job's gang, on nodes that still take gangs."""
        for part in job.gang.nodes if job.gang is not None else ():
            known = self._snapshot.free.get(part.node_id)
            if known is None:
                continue
            self._give(known, NodeAllocation.of(part.gpus, job.spec.resources, job.team))

    def give(self, allocations: Iterable[tuple[str, NodeAllocation]]) -> None:
        """Give back these parts of a gang, by node; the rest of it stays."""
        for node_id, allocation in allocations:
            known = self._snapshot.free.get(node_id)
            if known is not None:
                self._give(known, allocation)

    def _give(self, known: FreeNode, allocation: NodeAllocation) -> None:
        self._before.append(known)
        self._snapshot.free.put(known.more(allocation, self._snapshot.nodes[known.node_id]))

    def commit(self) -> None:
        """Keep the moves in the snapshot. Raises ValueError when nothing was placed or evicted."""
        if not self._before:
            raise ValueError("nothing was placed, so there is nothing to commit")
        self._forget()

    def discard(self) -> None:
        """Undo everything, last move first."""
        for node in reversed(self._before):
            self._snapshot.free.put(node)
        self._forget()

    def _forget(self) -> None:
        self._before.clear()
        self.placed.clear()


def _kept(node: FreeNode, gpus: int, accepted: tuple[str, ...]) -> tuple[int, ...]:
    """The last of a node's free GPUs; other models only while too few of the accepted are free."""
    kept = tuple(index for model in accepted for index in node.indexes(model)[-gpus:])
    if len(kept) >= gpus:
        return kept
    others = tuple(index for index in node.indexes("") if index not in kept)
    return (*others[len(kept) - gpus :], *kept)
