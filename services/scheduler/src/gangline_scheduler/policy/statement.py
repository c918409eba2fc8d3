"""Tentative placement: what would be free if these gangs were placed, committed or discarded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gangline_scheduler.model import FreeNode
from gangline_scheduler.policy.placement import Demand, Part, place


class Snapshot:
    """What is free on each schedulable node. Changed by committed statements only."""

    def __init__(self, free: Mapping[str, FreeNode]) -> None:
        self._free = dict(free)
        self.free_gpus = sum(len(node.gpus) for node in self._free.values())

    def nodes(self) -> Iterable[FreeNode]:
        """Every node, full ones too."""
        return self._free.values()

    def without(self, node_ids: frozenset[str]) -> Snapshot:
        """A snapshot that lacks these nodes."""
        return Snapshot({key: node for key, node in self._free.items() if key not in node_ids})

    def take(self, parts: tuple[Part, ...], demand: Demand) -> None:
        """Take what a placed gang holds."""
        for part in parts:
            node = self._free[part.node_id]
            count = len(part.gpus)
            self._free[part.node_id] = replace(
                node,
                gpus=tuple(gpu for gpu in node.gpus if gpu.index not in part.gpus),
                cpus=node.cpus - count * demand.cpus_per_gpu,
                memory_gb=node.memory_gb - count * demand.memory_per_gpu_gb,
            )
            self.free_gpus -= count


class Statement:
    """One gang's placement that is tried on a snapshot. Commit it, discard it, or forget it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._placed: tuple[tuple[Part, ...], Demand] | None = None

    def place(self, demand: Demand) -> tuple[Part, ...] | None:
        """Where the whole gang would go; None, and nothing taken, when it does not fit."""
        parts = place(demand, self._snapshot.nodes())
        self._placed = None if parts is None else (parts, demand)
        return parts

    def commit(self) -> None:
        """Take the GPUs in the snapshot. Raises ValueError when nothing was placed."""
        if self._placed is None:
            raise ValueError("nothing was placed, so there is nothing to commit")
        self._snapshot.take(*self._placed)
        self._placed = None

    def discard(self) -> None:
        """Forget the placement; the snapshot is as it was."""
        self._placed = None
