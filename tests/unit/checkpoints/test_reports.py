"""What ranks report is in no event: what a save writes does not grow with the gang."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gangline_checkpoints.core.model import Removed, Verified
from gangline_checkpoints.core.policy.ranks import holds, joined, runs_of
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.state import CheckpointState
from gangline_schemas.base import Event
from gangline_schemas.events.checkpoints import (
    CheckpointAbandoned,
    CheckpointCommitted,
    ObjectsDeleted,
)
from support.builders.checkpoints import (
    JOB,
    allocated,
    checkpoint_run,
    on_node,
    part,
    released,
    resumes,
)
from support.harnesses.decider_run import DeciderRun

PER_NODE = 8
RANKS = st.sets(st.integers(0, 40))


def save(run: DeciderRun[CheckpointState, Reports], step: int, ranks: int) -> list[Event]:
    """All events of one save, from the first report to the deletion of an older one."""
    found: list[Event] = []
    for first in range(0, ranks, PER_NODE):
        found += run.feed(on_node(*range(first, min(first + PER_NODE, ranks)), step=step))
    for rank in range(ranks):
        found += run.feed(part(rank, step, world_size=ranks))
    found += run.done(f"verify:{JOB}:1:{step}:0", Verified(100, 2 * ranks + 1, 0.1))
    found += run.feed(resumes(1, step))
    for key in run.effects():
        found += run.done(key, Removed(1))
    return found


def steady(ranks: int) -> list[Event]:
    run = checkpoint_run()
    run.feed(allocated(world_size=ranks))
    for step in range(1, 8):
        found = save(run, step, ranks)
    return found


def test_a_save_of_many_ranks_writes_what_one_of_a_few_does() -> None:
    few, many = steady(2), steady(64)
    assert [event.type for event in many] == [
        "checkpoint.begun",
        "checkpoint.saved",
        "checkpoint.written",
        "checkpoint.committed",
        "checkpoint.deleted",
        "resume.noted",
        "checkpoint.objects.deleted",
    ]
    assert [event.type for event in few] == [event.type for event in many]
    size = [sum(len(event.encode()) for event in events) for events in (few, many)]
    assert size[1] - size[0] < 32, "digits, and no more"


def test_a_verification_whose_reports_are_gone_is_given_up() -> None:
    run = checkpoint_run()
    run.feed(allocated())
    run.feed(part(0))
    run.feed(part(1))
    run.soft = Reports()  # the stream was emptied before this process took over
    assert run.effects() == {}
    [gone] = [event for event in run.tick() if isinstance(event, CheckpointAbandoned)]
    assert "no longer on gangline.workers" in gone.reason
    [key] = run.effects()
    assert [event.type for event in run.done(key, Removed(4))] == [ObjectsDeleted.type]


def test_parts_that_come_late_are_deleted_by_one_more_deletion_not_by_one_each() -> None:
    run = checkpoint_run()
    run.feed(allocated(world_size=64))
    run.feed(part(0, world_size=64))
    run.feed(released())
    run.feed(allocated(2, world_size=64))
    [first] = run.effects()
    for rank in range(1, 64):
        assert run.feed(part(rank, world_size=64)) == []
    [again] = run.done(first, Removed(2))
    assert isinstance(again, CheckpointAbandoned)
    [second] = run.effects()
    assert second != first
    assert [event.type for event in run.done(second, Removed(126))] == [ObjectsDeleted.type]
    assert all(run.feed(part(rank, world_size=64)) == [] for rank in range(64))


def test_what_a_commit_left_behind_is_not_remembered() -> None:
    run = checkpoint_run()
    run.feed(allocated())
    run.feed(part(0, 10))
    for step in (20, 30):
        run.feed(part(0, step))
        run.feed(part(1, step))
        run.take_over()
        done = run.done(f"verify:{JOB}:1:{step}:0", Verified(100, 5, 0.1))
        assert isinstance(done[0], CheckpointCommitted)
    assert run.soft.of_jobs == {}


@given(RANKS, RANKS)
def test_runs_of_ranks_are_the_ranks(some: set[int], others: set[int]) -> None:
    runs = joined(runs_of(some), runs_of(others))
    assert runs == runs_of(some | others)
    assert [rank for rank in range(42) if holds(runs, rank)] == sorted(some | others)
