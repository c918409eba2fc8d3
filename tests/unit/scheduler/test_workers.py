"""Workers of several GPUs: found wherever they fit, never cut, and checked as they are decided."""

from __future__ import annotations

from random import Random

import pytest

from gangline_bus.decision import Decision, InvariantViolated
from gangline_scheduler.core.allocate import allocate
from gangline_scheduler.core.free import FreeIndex
from gangline_scheduler.core.free_node import LEVELS, FreeNode
from gangline_scheduler.core.invariants import violations, whole_workers
from gangline_scheduler.core.model import Demand
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.placement import Part, Placement, lacking, place
from gangline_schemas.events.scheduling import GangAllocated
from support.builders.gangs import assigned
from support.builders.scheduler import Cluster, node

ROUNDS = 400


def free_node(name: str, gpus: int, cpus: float) -> FreeNode:
    rack = f"r{name[-1]}"
    path = (name, name, rack, "b", "")
    return FreeNode(name, path, (("h100", tuple(range(gpus))),), cpus, 100.0, home=2)


def allocated(cluster: Cluster, name: str) -> GangAllocated:
    found = [made.event for made, _ in cluster.log if isinstance(made.event, GangAllocated)]
    return next(event for event in reversed(found) if event.job_id == name)


def test_a_gang_is_placed_exactly_if_the_nodes_hold_all_its_workers() -> None:
    """Against counting: each node holds what its GPUs and CPUs are enough for, in whole workers."""
    fits = 0
    for seed in range(ROUNDS):
        draw = Random(seed)
        each, per_gpu = draw.randint(1, 4), draw.choice((1, 1, 2))
        demand = Demand(
            gpus=each * draw.randint(1, 5), gpus_per_worker=each, cpus_per_gpu=float(per_gpu)
        )
        sizes = [(draw.randint(0, 8), draw.randint(2, 16)) for _ in range(draw.randint(1, 5))]
        free = FreeIndex(free_node(f"n{i}", *size) for i, size in enumerate(sizes))
        rooms = [min(gpus, cpus // per_gpu) // each * each for gpus, cpus in sizes]

        found = place(demand, free, LEVELS)

        assert (found is not None) == (sum(rooms) >= demand.gpus), f"seed {seed}"
        if found is None:
            assert lacking(demand, free, LEVELS) == demand.gpus - sum(rooms), f"seed {seed}"
            continue
        fits += 1
        assert found.gpus == demand.gpus
        for part in found.parts:
            assert len(part.gpus) % each == 0, f"seed {seed}: {part}"
            assert len(part.gpus) <= rooms[int(part.node_id[1:])]
    assert ROUNDS // 4 < fits < ROUNDS


@pytest.mark.parametrize(
    ("free", "gpus"), [((7, 3), 8), ((5, 3), 6), ((3, 3), 4), ((2, 1), 2), ((9, 9), 8)]
)
def test_an_elastic_gang_takes_the_most_whole_workers(free: tuple[int, ...], gpus: int) -> None:
    index = FreeIndex(free_node(f"n{i}", size, 64) for i, size in enumerate(free))
    found = place(Demand(gpus=8, fewest=2, gpus_per_worker=2), index, LEVELS)
    assert found is not None
    assert found.gpus == gpus


def test_sizes_are_rounded_down_to_whole_workers() -> None:
    demand = Demand(gpus=12, fewest=3, gpus_per_worker=3)
    assert [demand.at_most(gpus).gpus for gpus in (1, 3, 5, 8, 11, 12)] == [3, 3, 3, 6, 9, 12]
    assert list(demand.smaller()) == [3, 6, 9]


def test_workers_begin_where_their_ranks_do() -> None:
    cluster = Cluster(node("a", 7), node("b", 4), node("c", 3))
    cluster.submit("j", 12, resources={"gpus_per_worker": 3})
    event = allocated(cluster, "j")
    assert event.world_size == 12
    assert [part.first_rank % 3 for part in event.nodes] == [0] * len(event.nodes)
    assert whole_workers(event) == []


def test_an_allocation_that_cuts_a_worker_is_not_decided() -> None:
    cluster = Cluster(node("a", 4), node("b", 4))
    cluster.run("x", 1)
    cluster.submit("j", 8, resources={"gpus_per_worker": 4})
    cut = Placement((Part("a", (1, 2, 3)), Part("b", (0, 1, 2, 3, 4))), "rack")
    with pytest.raises(InvariantViolated, match="3 GPUs of a are not whole workers of 4"):
        allocate(Plan(cluster.state, cluster.now), cluster.job("j"), cut)


def test_a_shape_that_lacks_a_worker_waits_for_a_node_that_holds_one() -> None:
    """GPUs that come free apart are no room, and the search for it is remembered as fruitless."""
    cluster = Cluster(node("a", 4), node("b", 4))
    for name in ("w", "x", "y", "z"):
        cluster.run(name, 2)
    cluster.submit("j", 4, resources={"gpus_per_worker": 4})
    on_a = [name for name in "wxyz" if allocated(cluster, name).nodes[0].node_id == "a"]
    on_b = [name for name in "wxyz" if name not in on_a]
    cluster.exit(on_a[0])
    cluster.exit(on_b[0])
    assert cluster.job("j").gang is None
    cluster.exit(on_b[1])
    assert allocated(cluster, "j").nodes[0].node_id == "b"


def test_a_log_in_which_a_tensor_group_crosses_nodes_still_replays() -> None:
    """Versions that knew no workers placed such gangs; they continue, and start again whole."""
    cluster, later = Cluster(node("a", 4), node("b", 4)), Cluster()
    cluster.submit("j", 4, parallel={"shard": "auto", "tensor": 2})
    event = allocated(cluster, "j")
    shares = [("a", (0,), 0), ("b", (0, 1, 2), 1)]
    parts = [assigned(*share, incarnation="i1") for share in shares]
    apart = event.model_copy(update={"nodes": tuple(parts)})

    later.state = later.decider.initial()
    for made, at in cluster.log:
        told = apart if made.event is event else made.event
        later.state = later.decider.evolve(later.state, Decision(made.subject, told), at)

    assert violations(later.state) == []
    later.tick(60)
    later.start("j")
    later.fail("j")
    assert [part.gpus for part in allocated(later, "j").nodes] == [(0, 1, 2, 3)]
