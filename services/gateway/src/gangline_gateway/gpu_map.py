"""The map of all GPUs: each node's standing, and which gang is on which GPU."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from pydantic_core import from_json

from gangline_gateway.live_model import LiveNode
from gangline_gateway.live_view import LiveView
from gangline_gateway.present import straggler
from gangline_gateway.scheduling import Shard
from gangline_scheduler.core.reserved_gpus import free_for
from gangline_schemas.api.cluster import GangOnNode, GpuMap, LargestGang, MapNode

FirstRanks = Callable[[str], dict[str, int]]


def gpu_map(
    view: LiveView,
    shards: Sequence[Shard],
    now: datetime,
    visible: frozenset[str] | None,
    *,
    nodes: bool = True,
) -> GpuMap:
    """All nodes, by block, rack and id. Jobs of teams that are not visible are not named.

    Not `nodes`: the sums alone.
    """
    found = [node for node in map(view.node, view.nodes) if node is not None]
    found.sort(key=lambda node: (node.info.block, node.info.rack, node.info.node_id))
    ranks = first_ranks(view)
    return GpuMap(
        at=now,
        gpus=sum(len(node.info.gpus) for node in found),
        nodes_all=len(found),
        gpus_ready=view.gpus_ready,
        gpus_used=view.used_gpus.total(),
        largest_gangs=largest_gangs(shards),
        nodes=[map_node(view, node, visible, ranks) for node in found] if nodes else [],
    )


def first_ranks(view: LiveView) -> FirstRanks:
    """By job: the first rank on each of its gang's nodes. Each gang is gone through once."""

    @functools.cache
    def of(job_id: str) -> dict[str, int]:
        job = view.scheduled(job_id)
        nodes = job.gang.nodes if job is not None and job.gang is not None else ()
        return {node.node_id: node.first_rank for node in nodes}

    return of


def map_node(
    view: LiveView, node: LiveNode, visible: frozenset[str] | None, ranks: FirstRanks
) -> MapNode:
    """One node of the map."""
    info = node.info
    busy = _utilization(node)
    indexes = sorted(gpu.index for gpu in info.gpus)
    return MapNode(
        node_id=info.node_id,
        status=node.status,
        why=node.reasons,
        straggler=straggler(view, node),
        block=info.block,
        rack=info.rack,
        model=info.gpus[0].model if info.gpus else "",
        gpus=indexes,
        gangs=list(_gangs(node, visible, ranks)),
        utilization=[busy.get(index) for index in indexes] if busy else None,
    )


def _gangs(
    node: LiveNode, visible: frozenset[str] | None, ranks: FirstRanks
) -> Iterable[GangOnNode]:
    for job_id, part in node.scheduled.allocations if node.scheduled is not None else ():
        seen = visible is None or part.team in visible
        yield GangOnNode(
            job_id=job_id if seen else None,
            team=part.team if seen else None,
            gpus=list(part.gpus),
            first_rank=ranks(job_id).get(node.info.node_id) if seen else None,
        )


def _utilization(node: LiveNode) -> dict[int, int | None]:
    """By GPU, of the current incarnation's last heartbeat; empty if there is none.

    Not decoded as a model: that takes 0.2 s for 1,250 nodes.
    """
    try:
        beat = from_json(node.heartbeat) if node.heartbeat else {}
        if beat.get("incarnation") != node.info.incarnation:
            return {}
        used = ((int(gpu["index"]), gpu.get("utilization")) for gpu in beat.get("gpus", ()))
        return {index: None if value is None else round(value) for index, value in used}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return {}  # an invalid heartbeat; its consumer puts it into the DLQ


def largest_gangs(shards: Sequence[Shard]) -> list[LargestGang]:
    """By model: the most GPUs that are free now and not reserved."""
    everywhere: Counter[str] = Counter()
    racks: dict[str, Counter[str]] = defaultdict(Counter)
    nodes: Counter[str] = Counter()
    for shard in shards:
        here: Counter[str] = Counter()
        for node in free_for(shard.state, shard.policy).free.nodes():
            for model, indexes in node.gpus:
                here[model] += len(indexes)
                racks[model][node.rack] += len(indexes)
                nodes[model] = max(nodes[model], len(indexes))
        for model, gpus in here.items():  # no gang spans two shards
            everywhere[model] = max(everywhere[model], gpus)
    return [
        LargestGang(
            model=model,
            gpus=gpus,
            in_one_rack=max(racks[model].values(), default=0),
            on_one_node=nodes[model],
        )
        for model, gpus in sorted(everywhere.items())
    ]
