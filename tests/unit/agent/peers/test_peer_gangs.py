"""Whom an agent asks for copies, and which attempts may ask it: by what the logs say."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from gangline_schemas.events.faults import NodeFailed
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    GangReleased,
    NodeAssignment,
    ReleaseReason,
)
from gangline_schemas.job import JobSpec
from gangline_worker.agent.peers import gangs as peer_gangs
from gangline_worker.agent.peers.gangs import Gangs, around
from support.builders.gangs import assigned, gang_allocated, gang_released

SPEC = JobSpec.model_validate({"name": "j", "team": "nlp", "resources": {"gpus": 1}, "run": "true"})


def node(name: str, first_rank: int, port: int | None = 4000) -> NodeAssignment:
    return assigned(
        name, (0,), first_rank, incarnation=f"{name}-1", address=f"{name}.example",
        copies_port=port,
    )  # fmt: skip


def gang(
    attempt: int, names: str, *, job_id: str = "job", saved_by: int | None = None
) -> GangAllocated:
    """A node for each letter, in this order; it starts from what attempt `saved_by` saved."""
    resume = saved_by and CheckpointRef(
        job_id="job", attempt=saved_by, step=5, world_size=2, commit_key="teams/nlp/COMMIT.json"
    )
    nodes = [node(name, rank) for rank, name in enumerate(names)]
    return gang_allocated(job_id, SPEC, *nodes, attempt=attempt, resume=resume or None)


def released(
    attempt: int, reason: ReleaseReason = ReleaseReason.RESTARTING, job_id: str = "job"
) -> GangReleased:
    return gang_released(job_id, attempt, datetime(2026, 11, 1, tzinfo=UTC), reason)


def heard(*events: GangAllocated | GangReleased | NodeFailed) -> Gangs:
    gangs = Gangs()
    for event in events:
        gangs.note(event)
    return gangs


def test_an_attempt_may_ask_until_it_is_released_or_superseded() -> None:
    gangs = heard(gang(1, "ab"))
    found = gangs.live("job", 1, 0.0)
    assert found is not None
    assert found.node_ids == {"a", "b"}
    gangs.note(released(1))
    assert gangs.live("job", 1, 0.0) is None
    gangs.note(gang(2, "bc"))
    assert gangs.live("job", 1, 0.0) is None
    assert gangs.live("job", 2, 0.0) is not None
    assert gangs.live("job", 3, 0.0) is None
    assert gangs.live("other", 1, 0.0) is None


def test_an_attempt_that_the_bus_brings_a_little_later_is_waited_for() -> None:
    gangs = heard(gang(1, "ab"))
    threading.Timer(0.05, gangs.note, [gang(2, "ab")]).start()
    assert gangs.live("job", 2, 60.0) is not None


def test_each_node_of_a_gang_asks_another_one_first() -> None:
    gangs = Gangs()
    order = {
        own: "".join(peer.node_id for peer in gangs.beside(gang(1, "abcd"), own)) for own in "abcd"
    }
    assert order == {"a": "bcd", "b": "cda", "c": "dab", "d": "abc"}
    assert around([node("a", 0)], "a") == []


def test_nodes_that_give_nothing_are_not_asked() -> None:
    silent = gang(1, "abc").model_copy(
        update={"nodes": (node("a", 0), node("b", 1, port=None), node("c", 2))}
    )
    assert [peer.node_id for peer in Gangs().beside(silent, "a")] == ["c"]


def test_nodes_of_the_gangs_that_saved_or_loaded_it_are_asked_too() -> None:
    gangs = heard(gang(1, "xy"), gang(2, "ab"), gang(3, "bc"))
    names = [peer.node_id for peer in gangs.elsewhere(gang(4, "cd", saved_by=2), "d")]
    assert names == ["b", "a"], "the newest first, not its own, none from before it was saved"
    assert gangs.elsewhere(gang(4, "cd"), "d") == ()
    other = gang(1, "d", job_id="evaluation", saved_by=3)
    assert [peer.node_id for peer in gangs.elsewhere(other, "d")] == ["b", "c"]


def test_a_node_that_failed_is_not_asked_until_it_comes_back() -> None:
    gangs = heard(
        gang(1, "ab"),
        NodeFailed(node_id="a", incarnation="a-1", reason="silent"),
        NodeFailed(node_id="b", incarnation="b-0", reason="restarted"),
    )
    assert [peer.node_id for peer in gangs.elsewhere(gang(2, "c", saved_by=1), "c")] == ["b"]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_gangs, "_JOBS_REMEMBERED", 2)
    monkeypatch.setattr(peer_gangs, "_FAILURES_REMEMBERED", 2)
    gangs = heard(*(gang(attempt, "ab") for attempt in range(1, 8)), released(7))
    assert sorted(gangs._by_job["job"]) == [4, 5, 6, 7]
    for number in range(3):
        gangs.note(gang(1, "ab", job_id=f"job-{number}"))
        gangs.note(NodeFailed(node_id=f"n{number}", incarnation="i", reason="silent"))
    assert set(gangs._by_job) == {"job-1", "job-2"}
    assert gangs._released == {}
    assert len(gangs._failed) == 2
    gangs.note(released(1, ReleaseReason.SUCCEEDED, "job-2"))
    assert set(gangs._by_job) == {"job-1"}, "of a job that has ended no node has anything"
    assert gangs.live("job-2", 1, 0.0) is None
