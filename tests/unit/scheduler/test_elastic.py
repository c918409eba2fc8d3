"""Elastic gangs: which size they start with, when they grow, and for whom they shrink."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from gangline_scheduler.core.invariants import consistent, violations
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.snapshot import fingerprint
from gangline_schemas.base import Event
from gangline_schemas.events.checkpoints import CheckpointDeleted
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    GangStopping,
    GpusReserved,
    GpusUnreserved,
    ReleaseReason,
)
from gangline_schemas.events.workers import ExitReason
from gangline_schemas.job import JobSpec
from support.builders.deciding import every, only
from support.builders.scheduler import Cluster, node, started_jobs, states

MINUTE = 60
HOUR = 60 * MINUTE


def elastic(least: int | list[int], **fields: object) -> dict[str, object]:
    """Down to so many GPUs, or with just these numbers of them."""
    counts = {"gpu_counts": least, "min_gpus": least[0]} if isinstance(least, list) else None
    return {"resources": counts or {"min_gpus": least}} | fields


def stops(events: list[Event]) -> list[tuple[str, str, int | None]]:
    found = every(events, GangStopping)
    return [(event.job_id, event.reason.value, event.resize_to) for event in found]


def sizes(cluster: Cluster) -> dict[str, int]:
    return {name: cluster.job(name).allocated_gpus for name in cluster.state.live}


def gone(cluster: Cluster, job_id: str) -> list[Event]:
    """The ranks saved and left; what follows, with the next tick."""
    return [*cluster.exit(job_id, ExitReason.STOPPED), *cluster.tick(seconds=1)]


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


def test_a_gang_without_seen_ranks_that_shrinks_fails_if_its_start_is_gone() -> None:
    cluster = Cluster(node(gpus=8))
    cluster.run("source")
    cluster.commit("source", 10)
    cluster.exit("source")
    cluster.submit("a", 8, **elastic(2, expected_runtime_hours=20, resume_from="source"))  # type: ignore[arg-type]
    cluster.give(CheckpointDeleted(job_id="source", attempt=1, step=10, reason="retention"))
    cluster.submit("b", 4, priority=10, expected_runtime_hours=2)

    asked = cluster.tick(seconds=MINUTE)

    assert stops(asked) == [("a", "resize", 4)]
    assert "failed" in states(asked)
    assert [*cluster.state.jobs] == ["b"]
    assert started_jobs(cluster.tick(seconds=1)) == ["b"]
    assert consistent(cluster.state) == []


def test_elastic_gangs_shrink_for_a_job_that_waits_and_stay_small_until_it_has_them() -> None:
    cluster = Cluster(node(gpus=8))
    cluster.run("a", 8, **elastic(2, expected_runtime_hours=20))
    cluster.commit("a", 50)
    cluster.submit("b", 4, priority=10, expected_runtime_hours=2)

    asked = cluster.tick(seconds=MINUTE)
    assert stops(asked) == [("a", "resize", 4)]
    held = only(asked, GpusReserved)
    assert (held.job_id, held.reason, held.victims) == ("b", "resize", ("a",))
    assert stops(cluster.tick(seconds=1)) == []

    ended = gone(cluster, "a")
    assert started_jobs(ended) == ["b", "a"]
    assert sizes(cluster) == {"b": 4, "a": 4}
    assert cluster.job("a").preemptions == 0
    assert fingerprint(cluster.replayed()) == fingerprint(cluster.state)
    assert consistent(cluster.state) == []


@dataclass(frozen=True)
class Shrink:
    """Given elastic gangs (name, GPUs, fewest or counts, priority) on 8 GPUs; a job waits."""

    name: str
    runs: tuple[tuple[str, int, int | list[int], int], ...]
    waits: dict[str, object]
    stopped: list[tuple[str, int]]


SHRINKS = [
    Shrink("only as far as needed", (("a", 8, 1, 50),), {"gpus": 3, "priority": 10}, [("a", 5)]),
    Shrink(
        "the worst rank gives first",
        (("a", 4, 1, 50), ("b", 4, 1, 60)),
        {"gpus": 2, "priority": 10},
        [("b", 2)],
    ),
    Shrink(
        "several give when one is not enough",
        (("a", 4, 2, 50), ("b", 4, 2, 60)),
        {"gpus": 4, "priority": 10},
        [("a", 2), ("b", 2)],
    ),
    Shrink(
        "who cannot give enough is not asked in vain",
        (("a", 4, 1, 50), ("b", 4, 3, 60)),
        {"gpus": 3, "priority": 10},
        [("a", 1)],
    ),
    Shrink(
        "to a number that it may have",
        (("a", 8, [2, 4, 8], 50),),
        {"gpus": 3, "priority": 10},
        [("a", 4)],
    ),
    Shrink(
        "each to a number that it may have",
        (("a", 4, [2, 4], 50), ("b", 4, [1, 2, 4], 60)),
        {"gpus": 4, "priority": 10},
        [("a", 2), ("b", 2)],
    ),
    Shrink("nobody below the fewest", (("a", 8, 6, 50),), {"gpus": 3, "priority": 10}, []),
    Shrink("nobody of a better rank", (("a", 8, 1, 5),), {"gpus": 3, "priority": 90}, []),
    Shrink(
        "nobody for a job that is soon over and hardly waits",
        (("a", 8, 1, 50),),
        {"gpus": 1, "priority": 10, "expected_runtime_hours": 0.01},
        [],
    ),
    Shrink(
        "the waiting job's fewest are enough",
        (("a", 8, 1, 50),),
        {"gpus": 8, "priority": 10, "resources": {"min_gpus": 2}},
        [("a", 6)],
    ),
]


@pytest.mark.parametrize("case", SHRINKS, ids=lambda case: case.name)
def test_for_a_job_that_waits(case: Shrink) -> None:
    cluster = Cluster(node(gpus=8))
    hours = 0.02 if "soon over" in case.name else 20
    for name, gpus, least, priority in case.runs:
        fields = elastic(least, priority=priority, expected_runtime_hours=hours)
        cluster.run(name, gpus, **fields)
        cluster.commit(name, 1)
    cluster.submit("w", of_team="cv", **case.waits)  # type: ignore[arg-type]

    asked = cluster.tick(seconds=1)

    assert sorted((name, to) for name, _, to in stops(asked)) == case.stopped
    assert len(every(asked, GpusReserved)) == bool(case.stopped)


def test_a_gang_shrinks_for_a_job_of_its_team_that_waits_for_quota() -> None:
    cluster = Cluster(node(gpus=16), limit=8)
    cluster.run("a", 8, **elastic(2, expected_runtime_hours=20))
    cluster.commit("a", 1)
    cluster.submit("b", 4, priority=10)

    assert stops(cluster.tick(seconds=MINUTE)) == [("a", "resize", 4)]
    ended = gone(cluster, "a")

    assert sizes(cluster) == {"b": 4, "a": 4}
    assert started_jobs(ended) == ["b", "a"]


def test_who_shrank_for_a_job_that_is_gone_takes_all_it_can() -> None:
    cluster = Cluster(node(gpus=8))
    cluster.run("a", 8, **elastic(2, expected_runtime_hours=20))
    cluster.commit("a", 1)
    cluster.submit("b", 4, priority=10)
    assert stops(cluster.tick(seconds=MINUTE)) == [("a", "resize", 4)]

    cluster.cancel("b")
    gone(cluster, "a")

    assert sizes(cluster) == {"a": 8}


def test_a_gang_that_never_started_shrinks_at_once() -> None:
    cluster = Cluster(node(gpus=8))
    cluster.submit("a", 8, **elastic(2, expected_runtime_hours=20))  # type: ignore[arg-type]
    cluster.submit("b", 4, priority=10)

    cluster.tick(seconds=1)
    cluster.tick(seconds=1)

    assert sizes(cluster) == {"b": 4, "a": 4}


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
