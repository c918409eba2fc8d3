"""Draining a node: when and where its gangs go, and what a cordon leaves alone."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gangline_scheduler.core.invariants import consistent
from gangline_scheduler.core.snapshot import fingerprint
from gangline_schemas.base import Event
from gangline_schemas.events.checkpoints import CheckpointDeleted
from gangline_schemas.events.faults import NodeDistrusted, NodeFailed
from gangline_schemas.events.quota import DrainAdmitted
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    GangStopping,
    GpusReserved,
    NodeCordoned,
    StopReason,
)
from gangline_schemas.events.workers import ExitReason, NodeJoined
from support.builders.deciding import every, only
from support.builders.scheduler import Cluster, node, started_jobs, states, stopped_for

MINUTE = 60


def drain(
    cluster: Cluster, node_id: str = "n1", *, on: bool = True, move: bool = True
) -> list[Event]:
    return cluster.give(DrainAdmitted(node_id=node_id, drain=on, move_jobs=move, user="ada"))


def stops(events: list[Event]) -> list[str]:
    return stopped_for(events)


def place(cluster: Cluster, job_id: str) -> list[str]:
    gang = cluster.job(job_id).gang
    return [part.node_id for part in gang.nodes] if gang is not None else []


def running(gpus: int = 2, *others: int, **fields: object) -> Cluster:
    """A job runs on n1, which has as many GPUs; n2, n3, ... have as many as said."""
    rest = (node(f"n{number}", gpus=count) for number, count in enumerate(others, 2))
    cluster = Cluster(node("n1", gpus=gpus), *rest)
    cluster.run("a", gpus, **fields)
    assert place(cluster, "a") == ["n1"]
    cluster.tick(seconds=1)
    return cluster


def test_a_gang_leaves_right_after_its_next_committed_checkpoint() -> None:
    cluster = running(2, 2)
    cluster.commit("a", 10)

    assert only(drain(cluster), NodeCordoned).move_jobs
    assert stops(cluster.tick(seconds=5 * MINUTE)) == []
    asked = cluster.commit("a", 20)

    assert only(asked, GangStopping).reason is StopReason.DRAIN
    held = only(asked, GpusReserved)
    assert (held.job_id, held.reason, held.nodes[0].node_id) == ("a", "drain", "n2")
    assert started_jobs(cluster.submit("b", priority=0)) == [], "its place is kept"
    ended = cluster.exit("a", ExitReason.STOPPED)
    gang = only(ended, GangAllocated)
    assert states(ended)[:2] == ["preempted", "pending"]
    assert (gang.job_id, gang.nodes[0].node_id) == ("a", "n2")
    assert gang.resume is not None
    assert gang.resume.step == 20
    assert cluster.job("a").preemptions == 0
    assert consistent(cluster.state) == []
    assert fingerprint(cluster.replayed()) == fingerprint(cluster.state)


@dataclass(frozen=True)
class Case:
    """Given a gang of 2 on n1 and n2 with `elsewhere` GPUs, after the drain and `steps`."""

    name: str
    elsewhere: int
    steps: tuple[str, ...]
    stopped: bool
    fields: tuple[tuple[str, object], ...] = ()
    move: bool = True


CASES = [
    Case("it stays until it has saved", 2, ("tick",), stopped=False),
    Case("it goes when it has saved", 2, ("commit",), stopped=True),
    Case("preemptible or not", 2, ("commit",), stopped=True, fields=(("preemptible", True),)),
    Case("it stays while there is no other place", 0, ("commit",), stopped=False),
    Case(
        "it goes at the next save after there is one", 0, ("commit", "join", "again"), stopped=True
    ),
    Case("it goes at the deadline if it saves nothing", 2, ("deadline",), stopped=True),
    Case("it goes at the deadline, other place or not", 0, ("deadline",), stopped=True),
    Case("it stays when the drain was undone", 2, ("undo", "commit", "deadline"), stopped=False),
    Case("it stays when only cordoned", 2, ("commit", "deadline"), stopped=False, move=False),
    Case(
        "a save that it would not start from is none",
        2,
        ("commit",),
        stopped=False,
        fields=(("checkpoint", {"resume": "never"}),),
    ),
    Case("the drain outlives its agent's restart", 2, ("rejoin", "commit"), stopped=True),
    Case("a cordon is told to move jobs later", 2, ("move", "commit"), stopped=True, move=False),
    Case("a drain is told to leave them later", 2, ("cordon", "commit"), stopped=False),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_running_gang(case: Case) -> None:
    others = (case.elsewhere,) if case.elsewhere else ()
    cluster = running(2, *others, **dict(case.fields))
    decided = drain(cluster, move=case.move)
    for step in case.steps:
        decided += _step(cluster, step)

    assert stops(decided) == (["a"] if case.stopped else [])


def _step(cluster: Cluster, step: str) -> list[Event]:  # noqa: PLR0911 - one for each word
    match step:
        case "tick":
            return cluster.tick(seconds=29 * MINUTE)
        case "deadline":
            return cluster.tick(seconds=30 * MINUTE)
        case "commit":
            return cluster.commit("a", 10)
        case "again":
            return cluster.commit("a", 20)
        case "join":
            return cluster.give(NodeJoined(node=node("n9", gpus=2)))
        case "rejoin":
            return cluster.give(NodeJoined(node=node("n1", gpus=2, incarnation="i2")))
        case "undo":
            return drain(cluster, on=False)
        case "move":
            return drain(cluster)
        case _:
            return drain(cluster, move=False)


def test_a_late_save_of_an_older_attempt_moves_nobody() -> None:
    cluster = running(2)
    cluster.fail("a")
    cluster.start("a")
    cluster.give(NodeJoined(node=node("n2", gpus=2)))
    drain(cluster)

    assert stops(cluster.commit("a", 10, attempt=1)) == []
    assert stops(cluster.commit("a", 20, attempt=2)) == ["a"]


def test_a_gang_of_which_no_rank_was_seen_goes_at_once() -> None:
    cluster = Cluster(node("n1", gpus=2), node("n2", gpus=2))
    cluster.submit("a", 2)

    decided = drain(cluster)

    assert only(decided, GangReleased).job_id == "a"
    assert place(cluster, "a") == ["n2"]


def test_it_stays_where_it_is_when_there_is_no_other_place() -> None:
    cluster = Cluster(node("n1", gpus=2))
    cluster.submit("a", 2)

    assert every(drain(cluster), GangReleased) == []
    assert every(cluster.tick(seconds=30 * MINUTE), GangReleased) != []
    assert place(cluster, "a") == []


def test_a_gang_that_had_to_go_waits_and_starts_when_there_is_room() -> None:
    cluster = running(2)
    drain(cluster)
    cluster.tick(seconds=30 * MINUTE)
    cluster.exit("a", ExitReason.STOPPED)
    assert place(cluster, "a") == []

    assert started_jobs(cluster.give(NodeJoined(node=node("n2", gpus=2)))) == ["a"]


def test_gangs_that_span_the_node_go_too_and_may_keep_their_other_gpus() -> None:
    cluster = Cluster(node("n1", gpus=2), node("n2", gpus=2))
    cluster.run("a", 4)
    cluster.give(NodeJoined(node=node("n3", gpus=2)))
    cluster.tick(seconds=1)
    drain(cluster)

    assert stops(cluster.commit("a", 1)) == ["a"]
    cluster.exit("a", ExitReason.STOPPED)

    assert sorted(place(cluster, "a")) == ["n2", "n3"]


def test_an_elastic_gang_leaves_with_the_gpus_that_there_are() -> None:
    cluster = running(4, 2, resources={"min_gpus": 2})
    drain(cluster)

    assert stops(cluster.commit("a", 1)) == ["a"]
    cluster.exit("a", ExitReason.STOPPED)

    assert place(cluster, "a") == ["n2"]
    assert cluster.job("a").allocated_gpus == 2


def test_two_gangs_do_not_wait_for_the_same_place() -> None:
    cluster = Cluster(node("n1", gpus=2))
    cluster.run("a")
    cluster.run("b")
    cluster.give(NodeJoined(node=node("n2", gpus=1)))
    cluster.tick(seconds=1)
    drain(cluster)

    assert stops(cluster.commit("a", 1)) == ["a"]
    assert stops(cluster.commit("b", 1)) == []
    cluster.exit("a", ExitReason.STOPPED)
    assert place(cluster, "a") == ["n2"]


def test_a_place_that_fails_in_between_leaves_the_gang_to_the_queue() -> None:
    cluster = running(2, 2, 2)
    drain(cluster)
    asked = cluster.commit("a", 1)
    taken = only(asked, GpusReserved).nodes[0].node_id
    cluster.give(NodeFailed(node_id=taken, incarnation="i1", reason="silent"))
    cluster.exit("a", ExitReason.STOPPED)
    cluster.tick(seconds=1)

    assert place(cluster, "a") == [{"n2": "n3", "n3": "n2"}[taken]]
    assert cluster.state.reserved == {}


def test_the_same_request_again_changes_nothing() -> None:
    cluster = running(2, 2)
    drain(cluster)

    assert drain(cluster) == []
    assert drain(cluster, on=False) != []
    assert drain(cluster, on=False) == []


def test_a_distrusted_node_takes_no_new_gangs_and_keeps_those_it_has() -> None:
    cluster = Cluster(node("n1", gpus=2))
    cluster.run("a", 1)
    lemon = NodeDistrusted(
        node_id="n1",
        incarnation="i1",
        failures=5,
        jobs=3,
        since=cluster.now,
        distrusted_at=cluster.now,
    )
    cordoned = only(cluster.give(lemon), NodeCordoned)
    assert (cordoned.reason, cordoned.move_jobs) == ("drain", False)
    assert cluster.give(lemon) == []
    assert stops(cluster.tick(seconds=60 * MINUTE)) == []
    cluster.submit("b", 1)
    assert place(cluster, "b") == []
    drain(cluster, on=False)
    assert place(cluster, "b") == ["n1"]


@pytest.mark.parametrize("gpus", [1, 4])
def test_a_gang_without_seen_ranks_fails_at_the_drain_if_its_start_is_gone(gpus: int) -> None:
    """One of 4 GPUs has parts on two nodes that drain."""
    cluster = Cluster(*(node(f"n{number}", gpus=2) for number in range(1, 6)))
    cluster.run("a")
    cluster.commit("a", 10)
    cluster.exit("a")
    cluster.run("c", 6)
    cluster.submit("b", gpus, resume_from="a")
    nodes = place(cluster, "b")
    cluster.give(CheckpointDeleted(job_id="a", attempt=1, step=10, reason="retention"))
    for node_id in nodes[1:]:
        assert stops(drain(cluster, node_id)) == [], "no other nodes are free yet"
    cluster.exit("c")

    ended = drain(cluster, nodes[0])

    assert states(ended) == ["checkpointing", "preempted", "pending", "failed"]
    assert "b" not in cluster.state.jobs
    assert every(ended, GpusReserved) == []
    assert consistent(cluster.state) == []


def test_gpus_reserved_for_a_job_that_ends_on_a_tick_are_free_for_the_next_gang_that_leaves() -> (
    None
):
    """The job was cancelled while it moved off a draining node."""
    cluster = running(2, 2, 1)
    drain(cluster)
    assert only(cluster.commit("a", 10), GpusReserved).nodes[0].node_id == "n2"
    cluster.cancel("a")
    cluster.submit("b", 1)
    assert place(cluster, "b") == ["n3"]
    assert stops(drain(cluster, "n3")) == [], "all other GPUs are reserved"

    ended = cluster.tick(seconds=10 * MINUTE)

    assert "cancelled" in states(ended)
    assert place(cluster, "b") == ["n2"]
    assert cluster.state.reserved == {}
    assert consistent(cluster.state) == []


@pytest.mark.parametrize(("gpus", "kept"), [(4, ["a", "b"]), (3, ["a"]), (1, [])])
def test_a_node_that_comes_back_with_fewer_gpus_has_no_more_of_them_reserved(
    gpus: int, kept: list[str]
) -> None:
    """Two gangs of 2 GPUs move to n2, which had 4: the first is promised its GPUs sooner."""
    cluster = Cluster(node("n1", gpus=4), node("n2", gpus=4))
    for number, job_id in enumerate(("a", "b"), 1):
        cluster.run(job_id, 2, stop_grace_seconds=60 * number)
    drain(cluster)
    for job_id in ("a", "b"):
        assert only(cluster.commit(job_id, 10), GpusReserved).nodes[0].node_id == "n2"

    cluster.give(NodeJoined(node=node("n2", gpus=gpus, incarnation="i2")))

    assert [*cluster.state.reserved] == kept
    assert consistent(cluster.state) == []
