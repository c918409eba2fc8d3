"""Searches that found nothing are remembered: job shapes that no node can hold cost nothing."""

from __future__ import annotations

import pytest

from gangline_scheduler.core.model import Demand
from gangline_scheduler.core.policy import placement
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.searches import MOST_GROWN, MOST_SHAPES, Searches
from gangline_scheduler.core.state import fork
from gangline_schemas.events.workers import NodeJoined
from support.builders.scheduler import Cluster, node, started_jobs

NODES = 16


class SearchCount:
    """How often it is looked what a node could give to a gang."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = placement.ranks_in

        def counted(demand: Demand, gpus: int, cpus: float, memory_gb: float) -> int:
            self.count += 1
            return real(demand, gpus, cpus, memory_gb)

        monkeypatch.setattr(placement, "ranks_in", counted)

    def of_an_end(self, cluster: Cluster, job_id: str) -> int:
        """While a job ends and the pass after that runs."""
        before = self.count
        cluster.exit(job_id)
        return self.count - before


def waiting(shapes: int, gpus: int = 16, *, tell: bool = True, **fields: object) -> Cluster:
    """A cluster with running jobs and free GPUs, and so many shapes that have waited for long."""
    nodes = [node(f"n{number}", 8) for number in range(NODES)]
    cluster = Cluster(*nodes, limit=10_000, policy=Policy(give_reasons=tell))
    for number in range(12):
        cluster.run(f"r{number}", 8)
    for number in range(shapes):
        need = {"gpus": gpus, "cpus_per_gpu": 1 + number / 1000}
        cluster.submit(f"s{number}", gpus, priority=10, resources=need, **fields)
    for _ in range(20):
        cluster.tick(600)
    return cluster


IMPOSSIBLE = {"topology": {"level": "node", "mode": "required"}}


def test_many_shapes_that_no_node_can_hold_cost_no_more_than_a_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, many = waiting(5, **IMPOSSIBLE), waiting(420, **IMPOSSIBLE)
    looks = SearchCount(monkeypatch)
    with_few = looks.of_an_end(few, "r0")
    assert looks.of_an_end(many, "r0") <= with_few


def test_a_tick_searches_for_none_of_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = waiting(420, tell=False, **IMPOSSIBLE)
    looks = SearchCount(monkeypatch)
    cluster.tick(1)
    assert looks.count == 0


def test_an_end_costs_shapes_that_may_fit_later_a_look_at_the_node_that_grew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, many = waiting(40, 8 * NODES), waiting(420, 8 * NODES)
    looks = SearchCount(monkeypatch)
    with_few = looks.of_an_end(few, "r0")
    assert looks.of_an_end(many, "r0") <= with_few + (420 - 40)


def test_a_node_that_joins_is_seen_by_a_shape_that_no_node_could_hold() -> None:
    cluster = waiting(1, **IMPOSSIBLE)
    assert "s0" in started_jobs(cluster.give(NodeJoined(node=node("big", 16))))


def test_a_memory_holds_until_what_grew_could_make_up_for_what_lacked() -> None:
    searches, demand = Searches(), Demand(gpus=16)
    searches.failed(demand, lacking=8)
    rooms = {"a": 4, "b": 3, "c": 1}
    assert searches.fails(demand, rooms.get)
    searches.grew("a")
    searches.grew("a")
    searches.grew("b")
    assert searches.fails(demand, rooms.get)
    searches.grew("c")
    assert not searches.fails(demand, rooms.get)


def test_a_node_of_which_nothing_can_be_said_ends_a_memory() -> None:
    searches, demand = Searches(), Demand(gpus=16)
    searches.failed(demand, lacking=8)
    searches.grew("gone")
    assert not searches.fails(demand, {}.get)


def test_a_gang_that_fitted_fits_until_a_node_shrinks() -> None:
    searches, demand = Searches(), Demand(gpus=16)
    searches.found(demand)
    searches.grew("a")
    assert searches.fits(demand)
    searches.shrank()
    assert not searches.fits(demand)


def test_a_memory_is_bounded() -> None:
    searches = Searches()
    for gpus in range(1, MOST_SHAPES + 2):
        searches.failed(Demand(gpus=gpus), lacking=1)
    assert not searches.fails(Demand(gpus=1), {}.get)
    assert searches.fails(Demand(gpus=MOST_SHAPES + 1), {}.get)
    for _ in range(MOST_GROWN + 1):
        searches.grew("a")
    assert not searches.fails(Demand(gpus=MOST_SHAPES + 1), {"a": 0}.get)


def test_what_is_tried_on_a_copy_is_not_remembered_here() -> None:
    cluster = waiting(1, **IMPOSSIBLE)
    other = fork(cluster.state)
    assert not other.free.searches
    assert not other.empty.searches
