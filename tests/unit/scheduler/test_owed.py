"""Inputs that were read together share one pass, and no job overtakes another meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
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


def join(cluster: Cluster, names: Sequence[str], *, last: bool = True) -> list[str]:
    """These nodes join together; the jobs that start. `last`: nothing else was read with them."""
    return [
        job_id
        for name in names
        for job_id in started_jobs(
            cluster.give(NodeJoined(node=node(name)), more=not last or name != names[-1])
        )
    ]


def test_nodes_that_join_together_cost_one_pass(passes: list[int]) -> None:
    cluster = waiting(*(f"j{number}" for number in range(20)))
    passes.clear()
    started = join(cluster, [f"n{number}" for number in range(20)])
    assert {*started} == {f"j{number}" for number in range(20)}
    assert len(passes) == 1


def test_an_input_that_makes_no_room_may_be_the_last() -> None:
    cluster = waiting("a", "b")
    cluster.submit("c", gpus=1)
    assert join(cluster, ["n1"], last=False) == []
    report = WorkerStarted(job_id="old", attempt=1, rank=0, node_id="n1", incarnation="i1", pid=1)
    assert started_jobs(cluster.give(report)) == ["a"]
    assert started_jobs(cluster.give(report)) == []


def test_a_tick_makes_the_pass_that_is_owed() -> None:
    cluster = waiting("a")
    assert join(cluster, ["n1"], last=False) == []
    assert started_jobs(cluster.tick(1)) == ["a"]


@pytest.mark.parametrize("more", [True, False])
def test_a_new_job_overtakes_none_that_waits_for_the_pass(more: bool) -> None:
    cluster = waiting("old")
    assert join(cluster, ["n1"], last=False) == []
    found = started_jobs(cluster.give(admitted(cluster, "new", 2), more=more))
    assert found == ([] if more else ["old"])
    cluster.tick(1)
    assert cluster.job("old").gang is not None
    assert cluster.job("new").gang is None


def test_a_job_that_is_read_with_others_starts_at_once_where_none_waits() -> None:
    cluster = Cluster(node("n1"))
    assert started_jobs(cluster.give(admitted(cluster, "a"), more=True)) == ["a"]


def test_gangs_that_end_together_make_room_for_one_that_needs_it_all() -> None:
    cluster = Cluster(node("n1", gpus=2), node("n2", gpus=2))
    for job_id in ("a", "b"):
        cluster.run(job_id, gpus=2)
    cluster.submit("both", gpus=4)
    found = []
    for number, job_id in enumerate(("a", "b", "a", "b")):
        rank = number // 2
        exited = WorkerExited(
            job_id=job_id, attempt=1, rank=rank, node_id="n1", incarnation="i1",
            reason=ExitReason.FINISHED,
        )  # fmt: skip
        found += [started_jobs(cluster.give(exited, more=number < 3))]
    assert found == [[], [], [], ["both"]]


def test_a_successor_folds_the_same_state() -> None:
    cluster = waiting("a", "b", "c")
    join(cluster, ["n1", "n2", "n3"])
    assert cluster.replayed().jobs == cluster.state.jobs
