"""Elastic gangs: which size they start with, and when they grow."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from gangline_scheduler.core.invariants import violations
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.snapshot import fingerprint
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    GpusReserved,
    GpusUnreserved,
    ReleaseReason,
)
from gangline_schemas.events.workers import ExitReason
from gangline_schemas.job import JobSpec
from support.builders.deciding import every, only
from support.builders.elastic import elastic, gone, sizes, stops
from support.builders.scheduler import Cluster, node, started_jobs, states

MINUTE = 60
HOUR = 60 * MINUTE


@dataclass(frozen=True)
class Start:
    """Given so many free GPUs and such a limit, a job of 8 GPUs, 2 at least, gets so many."""

    name: str
    free: int
    limit: int
    gets: int


STARTS = [
    Start("all that it asks for", 9, 64, 8),
    Start("all that is there", 5, 64, 5),
    Start("its fewest", 2, 64, 2),
    Start("nothing below its fewest", 1, 64, 0),
    Start("what its team may hold", 9, 6, 6),
    Start("the smaller of both", 3, 6, 3),
    Start("nothing when the team may not hold its fewest", 9, 1, 0),
]


@pytest.mark.parametrize("case", STARTS, ids=lambda case: case.name)
def test_it_starts_with(case: Start) -> None:
    cluster = Cluster(node(gpus=case.free), limit=case.limit)

    decided = cluster.submit("a", 8, **elastic(2))  # type: ignore[arg-type]

    gangs = every(decided, GangAllocated)
    assert [gang.world_size for gang in gangs] == ([case.gets] if case.gets else [])
    assert cluster.state.used.get("nlp", 0) == case.gets


@pytest.mark.parametrize(
    ("counts", "free", "limit", "gets"),
    [
        ([2, 4, 8], 8, 64, 8),
        ([2, 4, 8], 7, 64, 4),
        ([2, 4, 8], 4, 64, 4),
        ([2, 4, 8], 3, 64, 2),
        ([2, 4, 8], 1, 64, 0),
        ([2, 4, 8], 8, 7, 4),
        ([2, 4, 8], 5, 3, 2),
        ([2, 3, 5, 6, 7, 8], 4, 64, 3),
        ([2, 8], 7, 64, 2),
    ],
)
def test_it_starts_only_with_a_number_that_it_may_have(
    counts: list[int], free: int, limit: int, gets: int
) -> None:
    cluster = Cluster(node(gpus=free), limit=limit)

    decided = cluster.submit("a", 8, **elastic(counts))  # type: ignore[arg-type]

    assert [gang.world_size for gang in every(decided, GangAllocated)] == ([gets] if gets else [])


def test_a_gang_with_another_number_of_gpus_breaks_the_invariant() -> None:
    cluster = Cluster(node(gpus=6))
    cluster.run("a", 8, **elastic(2))
    assert violations(cluster.state) == []

    spec = cluster.job("a").spec.model_dump(mode="json")
    spec["resources"]["gpu_counts"] = [2, 4, 8]
    cluster.state.jobs["a"] = replace(cluster.job("a"), spec=JobSpec.model_validate(spec))

    assert violations(cluster.state) == ["a has 6 of its 8 GPUs"]


def half_size(**fields: object) -> Cluster:
    """Of a job of 8 GPUs, 2 at least, that on 4 of 8: b had the others, and has ended since."""
    cluster = Cluster(node(gpus=8))
    cluster.run("b", 4)
    cluster.run("a", 8, **elastic(2, **{"expected_runtime_hours": 5} | fields))
    cluster.exit("b")
    cluster.tick(seconds=1)
    return cluster


def test_it_grows_into_idle_gpus_right_after_a_checkpoint() -> None:
    cluster = half_size()
    assert stops(cluster.tick(seconds=10 * MINUTE)) == []
    cluster.commit("a", 100)

    asked = cluster.tick(seconds=1)
    assert stops(asked) == [("a", "resize", 8)]
    held = only(asked, GpusReserved)
    assert (held.job_id, held.reason, held.nodes[0].gpus) == ("a", "resize", 8)
    assert held.value_gpu_seconds > held.cost_gpu_seconds > 0
    assert started_jobs(cluster.submit("c", 2)) == [], "the GPUs are reserved for it"

    ended = cluster.exit("a", ExitReason.STOPPED)
    assert states(ended)[:2] == ["preempted", "pending"]
    assert only(ended, GangReleased).reason is ReleaseReason.PREEMPTED
    gang = only(ended, GangAllocated)
    assert (gang.job_id, gang.attempt, gang.world_size) == ("a", 2, 8)
    assert gang.resume is not None
    assert gang.resume.step == 100
    assert only(ended, GpusUnreserved).job_id == "a"
    assert cluster.job("a").preemptions == 0
    assert fingerprint(cluster.replayed()) == fingerprint(cluster.state)


@dataclass(frozen=True)
class NoGrowth:
    """Given a on 4 of 8 GPUs, with these fields and this on top, it does not grow."""

    name: str
    fields: dict[str, object]
    saved: bool = True
    waits: int = 0
    limit: int = 64
    later_s: float = 1
    stopped: list[tuple[str, str, int]] = field(default_factory=list)


NO_GROWTH = [
    NoGrowth("not", {}, stopped=[("a", "resize", 8)]),
    NoGrowth("it has not saved", {}, saved=False),
    NoGrowth("somebody waits who could use them", {}, waits=8),
    NoGrowth("its team may not hold more", {}, limit=4),
    NoGrowth("it ends too soon", {"expected_runtime_hours": 0.01}),
    NoGrowth("it would start anew", {"checkpoint": {"resume": "never"}}),
    NoGrowth(
        "it saved too long ago for what it gains", {"expected_runtime_hours": 1}, later_s=HOUR
    ),
    NoGrowth(
        "it may have no number between",
        {"resources": {"min_gpus": 4, "gpus": 12, "gpu_counts": [4, 12]}},
    ),
    NoGrowth("it is not elastic above that", {"resources": {"min_gpus": 2, "gpus": 4}}),
]


@pytest.mark.parametrize("case", NO_GROWTH, ids=lambda case: case.name)
def test_it_does_not_grow_when(case: NoGrowth) -> None:
    cluster = Cluster(node(gpus=8), node("n2", gpus=1), limit=case.limit)
    fields: dict[str, object] = {"expected_runtime_hours": 5}
    cluster.run("b", 4, of_team="cv")
    cluster.run("large", 1, of_team="cv")
    cluster.run("a", 8, **elastic(2, **fields | case.fields))
    if case.waits:
        cluster.submit("w", case.waits, of_team="cv", priority=90)
    cluster.exit("b")
    cluster.tick(seconds=1)
    if case.saved:
        cluster.commit("a", 100)

    assert stops(cluster.tick(seconds=case.later_s)) == case.stopped


def test_it_grows_past_jobs_that_wait_for_something_else() -> None:
    cluster = half_size()
    cluster.submit("huge", 100)
    cluster.tick(seconds=20)
    cluster.commit("a", 1)

    assert stops(cluster.tick(seconds=1)) == [("a", "resize", 8)]


def test_it_is_resized_at_most_once_in_a_while() -> None:
    cluster = Cluster(node(gpus=8), policy=Policy(resize_every=timedelta(minutes=30)))
    cluster.run("b", 2)
    cluster.run("c", 2)
    cluster.run("a", 8, **elastic(2, expected_runtime_hours=9))
    cluster.exit("b")
    cluster.tick(seconds=1)
    cluster.commit("a", 1)
    cluster.tick(seconds=1)
    gone(cluster, "a")
    cluster.start("a")
    assert sizes(cluster)["a"] == 6
    cluster.exit("c")

    cluster.tick(seconds=1)
    cluster.commit("a", 2, attempt=2)
    assert stops(cluster.tick(seconds=1)) == []
    assert stops(cluster.tick(seconds=30 * MINUTE)) == [("a", "resize", 8)]


def test_a_clock_that_was_hours_ahead_and_is_corrected_delays_no_resize() -> None:
    cluster = Cluster(node(gpus=8))
    cluster.run("a", 8, **elastic(2, expected_runtime_hours=20))
    cluster.commit("a", 50)
    cluster.submit("b", 4, priority=10, expected_runtime_hours=2)
    assert stops(cluster.tick(seconds=MINUTE)) == [("a", "resize", 4)]
    gone(cluster, "a")
    cluster.start("a")
    cluster.now -= timedelta(hours=6)
    cluster.commit("a", 60, attempt=2)
    cluster.submit("c", 2, priority=10, expected_runtime_hours=2)

    assert stops(cluster.tick(seconds=MINUTE)) == [("a", "resize", 2)]


def test_one_gang_grows_in_a_pass() -> None:
    cluster = Cluster(node(gpus=8))
    cluster.run("x", 4)
    cluster.run("a", 2, priority=20)
    cluster.run("y", 1)
    cluster.run("b", 8, **elastic(1, expected_runtime_hours=5, priority=60))
    cluster.exit("a")
    cluster.run("c", 4, **elastic(1, expected_runtime_hours=5, priority=40))
    cluster.exit("x")
    cluster.tick(seconds=1)
    cluster.commit("b", 1)
    cluster.commit("c", 1)

    assert sizes(cluster) == {"y": 1, "b": 1, "c": 2}
    assert stops(cluster.tick(seconds=1)) == [("c", "resize", 4)]
    assert stops(cluster.tick(seconds=1)) == [("b", "resize", 3)]


def test_a_gang_that_is_cancelled_while_it_grows_ends_and_its_gpus_are_free() -> None:
    cluster = half_size()
    cluster.commit("a", 1)
    assert stops(cluster.tick(seconds=1)) == [("a", "resize", 8)]
    cluster.cancel("a")
    ended = cluster.exit("a", ExitReason.STOPPED)

    assert states(ended) == ["cancelled"]
    assert cluster.state.reserved == {}
    assert started_jobs(cluster.submit("c", 8)) == ["c"]


def test_a_gang_that_does_not_stop_in_time_is_resized_all_the_same() -> None:
    cluster = half_size(stop_grace_seconds=10)
    cluster.commit("a", 1)
    assert stops(cluster.tick(seconds=1)) == [("a", "resize", 8)]

    cluster.tick(seconds=30)

    assert sizes(cluster) == {"a": 8}, "the deadline passed: it starts again, larger"
    assert cluster.state.reserved == {}
