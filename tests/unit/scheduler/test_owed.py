"""Inputs that were read together share one pass, and no job overtakes another meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gangline_scheduler.core import cycle
from gangline_schemas.events.quota import JobAdmitted
from gangline_schemas.events.workers import ExitReason, NodeJoined, WorkerExited, WorkerStarted
from support.builders.deciding import spec
from support.builders.scheduler import Cluster, node, started_jobs


def admitted(cluster: Cluster, job_id: str, gpus: int = 1) -> JobAdmitted:
    return JobAdmitted(job_id=job_id, spec=spec("nlp", gpus), user="ada", submitted_at=cluster.now)


def waiting(*job_ids: str, gpus: int = 2) -> Cluster:
    """Jobs that wait for nodes."""
    cluster = Cluster()
    for job_id in job_ids:
        cluster.submit(job_id, gpus=gpus)
    cluster.now += timedelta(minutes=1)
    return cluster


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each full pass."""
    found: list[int] = []
    real = cycle.run_pass

    def counted(*args: object, **given: object) -> object:
        found.append(1)
        return real(*args, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(cycle, "run_pass", counted)
    return found


def join(cluster: Cluster, *names: str) -> list[str]:
    """These nodes join as part of a batch; the jobs that start."""
    return [
        job_id
        for name in names
        for job_id in started_jobs(cluster.give(NodeJoined(node=node(name)), together=True))
    ]


def test_nodes_that_join_together_cost_one_pass(passes: list[int]) -> None:
    cluster = waiting(*(f"j{number}" for number in range(20)))
    passes.clear()
    assert join(cluster, *(f"n{number}" for number in range(20))) == []
    assert {*started_jobs(cluster.end_batch())} == {f"j{number}" for number in range(20)}
    assert len(passes) == 1


def test_a_batch_that_makes_no_room_costs_no_pass(passes: list[int]) -> None:
    cluster = waiting("a", "b")
    join(cluster, "n1")
    assert started_jobs(cluster.end_batch()) == ["a"]
    passes.clear()
    cluster.start("a", [0])
    report = WorkerStarted(job_id="a", attempt=1, rank=1, node_id="n1", incarnation="i1", pid=1)
    cluster.give(report, together=True)
    assert cluster.end_batch() == []
    assert passes == []


def test_a_tick_makes_the_pass_that_is_owed() -> None:
    cluster = waiting("a")
    assert join(cluster, "n1") == []
    assert started_jobs(cluster.tick(1)) == ["a"]
    assert cluster.end_batch() == []


def test_a_new_job_overtakes_none_that_waits_for_the_pass() -> None:
    cluster = waiting("old")
    assert join(cluster, "n1") == []
    assert started_jobs(cluster.give(admitted(cluster, "new", 2), together=True)) == []
    assert started_jobs(cluster.end_batch()) == ["old"]


def test_a_job_that_is_read_with_others_starts_at_once_where_none_waits() -> None:
    cluster = Cluster(node("n1"))
    assert started_jobs(cluster.give(admitted(cluster, "a"), together=True)) == ["a"]


def test_gangs_that_end_together_make_room_for_one_that_needs_it_all() -> None:
    cluster = Cluster(node("n1", gpus=2), node("n2", gpus=2))
    for job_id in ("a", "b"):
        cluster.run(job_id, gpus=2)
    cluster.submit("both", gpus=4)
    for job_id in ("a", "b"):
        for rank in range(2):
            exited = WorkerExited(
                job_id=job_id, attempt=1, rank=rank, node_id="n1", incarnation="i1",
                reason=ExitReason.FINISHED,
            )  # fmt: skip
            assert started_jobs(cluster.give(exited, together=True)) == []
    assert started_jobs(cluster.end_batch()) == ["both"]


def test_a_successor_folds_the_same_state() -> None:
    cluster = waiting("a", "b", "c")
    join(cluster, "n1", "n2", "n3")
    assert len(started_jobs(cluster.end_batch())) == 3
    assert cluster.replayed().jobs == cluster.state.jobs
