"""Elastic gangs: for whom they shrink, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gangline_scheduler.core.invariants import consistent
from gangline_scheduler.core.snapshot import fingerprint
from gangline_schemas.events.checkpoints import CheckpointDeleted
from gangline_schemas.events.scheduling import (
    GpusReserved,
)
from support.builders.deciding import every, only
from support.builders.elastic import elastic, gone, sizes, stops
from support.builders.scheduler import Cluster, node, started_jobs, states

MINUTE = 60


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
