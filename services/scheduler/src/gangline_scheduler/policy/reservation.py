"""The starvation guard: nodes that are kept for a job that has waited too long for its GPUs.

This is the seam for reservations and backfill with run-time estimates: for now the kept nodes are
left out for everybody else until the job starts.
"""

from __future__ import annotations

from collections.abc import Mapping

from gangline_scheduler.model import FreeNode, Node, free_of
from gangline_scheduler.policy.placement import LEVELS, Demand, capacity, domain_of, type_choices


def reserve(demand: Demand, nodes: Mapping[str, Node]) -> frozenset[str]:
    """The nodes to keep for this gang; empty when even the empty nodes could not hold it.

    Of the domains whose empty nodes hold the gang, the closest level with the most room free now;
    of its nodes those with the most room free now. As nobody else starts there, the next pass
    chooses the same ones. Cost: O(nodes) per level.
    """
    usable = [
        (free_of(node), free_of(node, when_empty=True))
        for node_id, node in nodes.items()
        if node.schedulable and node_id not in demand.never
    ]
    for accepted in type_choices(demand):
        rooms = [
            (capacity(demand, now, accepted), capacity(demand, empty, accepted), empty)
            for now, empty in usable
        ]
        for level in LEVELS[: LEVELS.index(demand.widest) + 1]:
            domains: dict[str, list[tuple[int, int, FreeNode]]] = {}
            for room in rooms:
                domains.setdefault(domain_of(room[2], level), []).append(room)
            holding = [
                (-sum(room[0] for room in domain), name)
                for name, domain in domains.items()
                if sum(room[1] for room in domain) >= demand.gpus
            ]
            if holding:
                return _chosen(domains[min(holding)[1]], demand.gpus)
    return frozenset()


def _chosen(rooms: list[tuple[int, int, FreeNode]], gpus: int) -> frozenset[str]:
    chosen = []
    for _, size, node in sorted(rooms, key=lambda room: (-room[0], room[2].node_id)):
        if gpus <= 0:
            break
        if size > 0:
            chosen.append(node.node_id)
            gpus -= size
    return frozenset(chosen)
