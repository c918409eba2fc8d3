"""The policies: order, placement, ceilings, the guard, and the reasons that users read."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest

from gangline_scheduler.core.cycle import reservations
from gangline_scheduler.core.free import FreeIndex
from gangline_scheduler.core.free_node import LEVELS, empty_of
from gangline_scheduler.core.model import Demand, Job, Node
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.order import FairShare, own_rank
from gangline_scheduler.core.policy.placement import place
from gangline_scheduler.core.policy.statement import Snapshot, Statement
from gangline_scheduler.core.state import State
from gangline_scheduler.core.team_model import Team
from gangline_schemas.events.quota import TeamConfigured
from gangline_schemas.events.scheduling import GangAllocated, JobWaiting
from gangline_schemas.events.workers import NodeInfo, NodeJoined
from gangline_schemas.job import JobState
from support.builders.deciding import START, every, only, spec, team
from support.builders.scheduler import Cluster, node, started_jobs


def job(job_id: str = "j", priority: int = 50, waited_minutes: float = 0) -> Job:
    since = START - timedelta(minutes=waited_minutes)
    return Job(job_id, spec(), "ada", START, priority, JobState.PENDING, since)


def value(used: int, guarantee: int = 0, limit: int = 8, **fields: float) -> float:
    config = team("nlp", limit=limit, guarantee=guarantee)
    state = State(teams={"nlp": Team(config)}, used={"nlp": used})
    return FairShare().rank(job(**fields), state, START)[1]  # type: ignore[arg-type]


def free(*infos: NodeInfo) -> FreeIndex:
    return FreeIndex(empty_of(Node(info)) for info in infos)


def where(demand: Demand, *infos: NodeInfo) -> dict[str, int] | None:
    found = place(demand, free(*infos), LEVELS)
    return None if found is None else {part.node_id: len(part.gpus) for part in found.parts}


# --- order ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "guarantee", "waited", "wanted"),
    [
        (0, 8, 0, 50),
        (8, 8, 0, 50),  # exactly its share
        (16, 8, 0, 100),  # twice its share: 50 back
        (12, 8, 100, 65),  # half above it, and 100 minutes of waiting: 25 back, 10 forward
        (0, 8, 10_000, 30),  # waiting brings 20 at most
        (8, 0, 0, 50),  # without a guarantee, the limit is the base
        (16, 0, 0, 100),
    ],
)
def test_fair_share_formula(used: int, guarantee: int, waited: float, wanted: float) -> None:
    assert value(used, guarantee, limit=8, waited_minutes=waited) == pytest.approx(wanted)


def test_ties_go_to_the_earlier_submission_then_the_smaller_id() -> None:
    early, late = job("b"), replace(job("a"), submitted_at=START + timedelta(seconds=1))

    assert own_rank(early, START) < own_rank(late, START)
    assert own_rank(job("a"), START) < own_rank(job("b"), START)


def test_a_job_in_the_place_of_a_withdrawn_one_has_its_age() -> None:
    """But never an age that lies ahead, which a clock that was put back would give it."""
    cluster = Cluster(node(gpus=1))
    cluster.submit("a")
    for name, since in (("b", None), ("c", START - timedelta(hours=1)), ("d", None)):
        cluster.submit(name, waits_since=since)
    cluster.submit("e", waits_since=cluster.now + timedelta(hours=9))
    order = ["a"]
    for _ in range(4):
        order += started_jobs(cluster.cancel(order[-1]))
    assert order == ["a", "c", "b", "d", "e"]


def test_a_team_above_its_share_lets_another_go_first() -> None:
    cluster = Cluster(node(gpus=6))
    for name in ("nlp", "cv"):
        cluster.give(TeamConfigured(config=team(name, limit=64, guarantee=2)))
    for job_id in ("n1", "n2", "n3"):
        cluster.submit(job_id, gpus=2, of_team="nlp")
    cluster.submit("n4", gpus=2, of_team="nlp", priority=50)
    cluster.submit("c1", gpus=2, of_team="cv", priority=60)

    # nlp still holds twice its guarantee: its job falls back by 50
    assert started_jobs(cluster.cancel("n1")) == ["c1"]


def test_the_shares_count_as_they_are_after_each_start() -> None:
    cluster = Cluster()
    for name in ("nlp", "cv"):
        cluster.give(TeamConfigured(config=team(name, limit=64, guarantee=1)))
    for number in range(2):
        cluster.submit(f"n{number}", gpus=2, of_team="nlp", priority=10)
        cluster.submit(f"c{number}", gpus=2, of_team="cv", priority=20)

    decided = cluster.give(NodeJoined(node=node(gpus=8)))

    assert started_jobs(decided) == ["n0", "c0", "n1", "c1"]


# --- placement -----------------------------------------------------------------------------


def test_the_tightest_node_that_holds_the_gang_is_taken() -> None:
    assert where(Demand(2), node("big", 8), node("mid", 3), node("small", 1)) == {"mid": 2}


def test_a_gang_stays_in_one_rack_if_it_can() -> None:
    nodes = (
        node("a1", 2, rack="a"),
        node("b1", 2, rack="b"),
        node("b2", 2, rack="b"),
        node("c1", 3, rack="c"),
    )
    assert where(Demand(4), *nodes) == {"b1": 2, "b2": 2}
    assert where(Demand(7), *nodes) is not None
    assert where(Demand(4, widest="node"), *nodes) is None
    assert where(Demand(5, widest="rack"), *nodes) is None


def test_blocks_come_between_racks_and_the_whole_cluster() -> None:
    nodes = (
        node("a", 2, rack="r1", block="x"),
        node("b", 2, rack="r1", block="y"),
        node("c", 2, rack="r2", block="y"),
    )
    assert where(Demand(4), *nodes) == {"b": 2, "c": 2}


def test_the_rest_of_a_gang_goes_where_it_fits_best() -> None:
    nodes = (node("a", 4), node("b", 4), node("c", 1))

    assert where(Demand(5), *nodes) == {"a": 4, "c": 1}


def test_gpu_types_are_tried_in_order_of_preference() -> None:
    nodes = (node("a", 4, model="a100"), node("h", 2, model="H100"))

    assert where(Demand(2, gpu_types=("h100", "a100")), *nodes) == {"h": 2}
    assert where(Demand(4, gpu_types=("h100", "a100")), *nodes) == {"a": 4}
    assert where(Demand(5, gpu_types=("h100", "a100")), *nodes) is None
    assert where(Demand(6), *nodes) == {"a": 4, "h": 2}


def test_cpus_and_memory_for_each_gpu_are_kept() -> None:
    nodes = (node("lean", 4, cpus=4), node("rich", 4, cpus=64))

    assert where(Demand(4, cpus_per_gpu=8), *nodes) == {"rich": 4}
    assert where(Demand(4, memory_per_gpu_gb=200), *nodes) == {"lean": 2, "rich": 2}


def test_avoided_nodes_are_used_only_if_nothing_else_fits_and_never_ones_never() -> None:
    nodes = (node("a", 2), node("b", 4))

    assert where(Demand(2, avoid=frozenset({"a"})), *nodes) == {"b": 2}
    assert where(Demand(6, avoid=frozenset({"a"})), *nodes) == {"a": 2, "b": 4}
    assert where(Demand(6, never=frozenset({"a"})), *nodes) is None


def test_a_statement_takes_nothing_until_it_is_committed() -> None:
    snapshot = Snapshot(free(node("a", 2)), {"a": Node(node("a", 2))}, levels=LEVELS)
    statement = Statement(snapshot)

    assert statement.place(Demand(2)) is not None
    statement.discard()
    assert snapshot.free_gpus == 2
    with pytest.raises(ValueError, match="nothing was placed"):
        statement.commit()
    statement.place(Demand(2))
    statement.commit()
    assert snapshot.free_gpus == 0
    assert statement.place(Demand(1)) is None


# --- ceilings ------------------------------------------------------------------------------


def test_a_team_never_passes_its_limit() -> None:
    cluster = Cluster(node(gpus=8), limit=4)
    cluster.submit("a", gpus=3)

    decided = cluster.submit("b", gpus=2)

    assert only(decided, JobWaiting).code == "quota"
    assert "team nlp has 3 of the 4" in only(decided, JobWaiting).message
    assert started_jobs(cluster.submit("c", gpus=1)) == ["c"]


def test_borrowing_stops_while_another_team_waits_for_its_guarantee() -> None:
    cluster = Cluster(node(gpus=6))
    cluster.give(TeamConfigured(config=team("nlp", limit=2, borrow=4)))
    cluster.give(TeamConfigured(config=team("cv", limit=4, guarantee=4)))
    assert started_jobs(cluster.submit("n1", gpus=3)) == ["n1"]
    cluster.submit("c1", gpus=4, of_team="cv")

    decided = cluster.submit("n2", gpus=2)

    assert "once team cv has its guarantee" in only(decided, JobWaiting).message
    freed = cluster.cancel("n1")
    assert started_jobs(freed)[0] == "c1"


def test_a_lowered_limit_leaves_running_gangs_alone() -> None:
    cluster = Cluster(node(gpus=8))
    cluster.submit("a", gpus=3)
    cluster.submit("b", gpus=3)
    cluster.give(TeamConfigured(config=team("nlp", limit=2)))

    assert started_jobs(cluster.submit("c")) == []
    assert started_jobs(cluster.cancel("a")) == []  # b alone is still above the limit
    assert started_jobs(cluster.cancel("b")) == ["c"]


# --- the starvation guard ------------------------------------------------------------------


def test_smaller_jobs_go_ahead_until_the_guard_keeps_the_nodes() -> None:
    cluster = Cluster(node(gpus=4), guard_minutes=30)
    cluster.run("a", gpus=3)
    cluster.submit("large", gpus=4)
    assert started_jobs(cluster.submit("s1")) == ["s1"]
    cluster.start("s1")
    cluster.tick(seconds=31 * 60)
    cluster.exit("s1")

    (made,) = reservations(cluster.state, cluster.now, Policy())
    told = only(cluster.submit("s2"), JobWaiting)
    passed = cluster.tick(seconds=1)

    assert (made.job_id, made.nodes) == ("large", {"n1"})
    assert "reserved for nlp/large" in told.message
    assert started_jobs(passed) == []
    assert started_jobs(cluster.exit("a")) == ["large"]


def test_nodes_that_are_not_kept_are_free_for_all() -> None:
    cluster = Cluster(node("n1", gpus=4), node("n2", gpus=1), guard_minutes=30)
    cluster.submit("a", gpus=3)
    cluster.submit("large", gpus=4, topology={"level": "node", "mode": "required"})
    cluster.tick(seconds=31 * 60)

    cluster.submit("s1")
    cluster.submit("s2")
    placed = every(cluster.tick(seconds=1), GangAllocated)

    assert [(gang.job_id, gang.nodes[0].node_id) for gang in placed] == [("s1", "n2")]


def test_the_nodes_with_most_room_now_are_kept() -> None:
    cluster = Cluster(node("n1", gpus=4), node("n2", gpus=4))
    cluster.submit("a", gpus=3)

    busy = only([decision.event for decision, _ in cluster.log], GangAllocated).nodes[0].node_id
    cluster.submit("b", gpus=1)
    cluster.submit("large", gpus=7)
    cluster.tick(seconds=31 * 60)
    (made,) = reservations(cluster.state, cluster.now, Policy())

    assert busy in made.nodes


def test_a_reservation_may_wait_for_jobs_that_start_in_the_same_pass() -> None:
    cluster = Cluster(node(gpus=4), guard_minutes=30)
    cluster.run("a", gpus=4, expected_runtime_hours=1)
    cluster.submit("first", gpus=3, priority=1)
    cluster.submit("large", gpus=4, priority=2)
    cluster.submit("small", gpus=1, priority=3, expected_runtime_hours=48)
    cluster.tick(seconds=31 * 60)

    assert started_jobs(cluster.exit("a")) == ["first"]
    (made,) = reservations(cluster.state, cluster.now, Policy())
    assert (made.job_id, made.nodes) == ("large", {"n1"})


# --- reasons -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"gpus": 9}, "shape", "needs 9 GPUs; all nodes together have 4"),
        (
            {"gpus": 1, "resources": {"gpu_type": "h100"}},
            "gpu_type",
            "no node has GPUs of type h100; there are cpu",
        ),
        (
            {"gpus": 4, "topology": {"level": "node", "mode": "required"}},
            "topology",
            "needs 4 GPUs in one node; the largest has 2",
        ),
        (
            {"gpus": 4, "resources": {"cpus_per_gpu": 50}},
            "shape",
            "with 50 CPUs and 1 GB each; all nodes together have room for 2",
        ),
        (
            {"gpus": 4},
            "capacity",
            "needs 4 GPUs together; 2 of 4 are free (cv/x has 2 since 08:00 UTC)",
        ),
    ],
)
def test_one_dominant_reason_with_evidence(
    fields: dict[str, object], code: str, words: str
) -> None:
    cluster = Cluster(node("n1", gpus=2), node("n2", gpus=2))
    cluster.submit("x", gpus=2, of_team="cv")

    waiting = only(cluster.submit("a", **fields), JobWaiting)  # type: ignore[arg-type]

    assert waiting.code == code
    assert words in waiting.message


def test_a_reason_is_told_again_only_when_something_happened() -> None:
    cluster = Cluster(node(gpus=2))
    cluster.submit("x", gpus=1)
    cluster.submit("a", gpus=2)

    assert [cluster.tick(seconds=20) for _ in range(5)] == [[]] * 5
    cluster.submit("y", gpus=1)
    assert cluster.tick(seconds=20) == []  # other numbers alone are written once in 15 minutes
    told = cluster.tick(seconds=900)
    assert "0 of 2 are free" in only(told, JobWaiting).message

    cluster.give(TeamConfigured(config=team("nlp", limit=1)))
    assert only(cluster.tick(seconds=20), JobWaiting).code == "quota"


def test_a_queue_that_stands_costs_few_events_whatever_starts_and_ends() -> None:
    """300 jobs wait for 2 hours, and one ends a minute: 50 get reasons, 4 times an hour each."""
    cluster = Cluster(*(node(f"n{number}", gpus=8) for number in range(4)), limit=500)
    draw = Random(1)
    for number in range(300):
        gpus, priority = draw.choice((1, 2, 4, 8)), draw.choice((30, 40, 50, 60))
        cluster.submit(f"j{number}", gpus, draw.choice(("nlp", "cv")), priority=priority)
    told = 0
    for _ in range(2 * 60):
        live = sorted(cluster.state.live)
        for job_id in live:
            if cluster.job(job_id).state is JobState.SCHEDULED:
                cluster.start(job_id)
        ended = cluster.exit(draw.choice(live))
        told += len(every([*ended, *cluster.tick(seconds=60)], JobWaiting))
    assert 50 < told < 50 * 4 * 2 + 250


def test_a_long_queue_is_told_shortly() -> None:
    cluster = Cluster(node(gpus=1))
    cluster.submit("x")
    for number in range(60):
        cluster.submit(f"a{number}")

    assert cluster.job("a59").waiting.code == "order"  # type: ignore[union-attr]
    assert cluster.job("a0").waiting.code == "capacity"  # type: ignore[union-attr]


def test_a_higher_priority_goes_first_when_room_appears() -> None:
    cluster = Cluster(node(gpus=1))
    cluster.submit("x")
    cluster.submit("a", priority=50)
    cluster.submit("b", priority=50)
    cluster.prioritize("b", 10)

    assert started_jobs(cluster.cancel("x")) == ["b"]
