"""A checkpoint counts on its nodes' disks before it counts in the store."""

from __future__ import annotations

import pytest

from gangline_checkpoints.core.parts import MAX_OPEN
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.state import CheckpointState
from gangline_schemas.events.checkpoints import (
    CheckpointAbandoned,
    CheckpointBegun,
    CheckpointSaved,
)
from gangline_schemas.events.workers import NodeSaved
from support.builders.checkpoints import (
    JOB,
    allocated,
    checkpoint_run,
    commit,
    lost,
    on_node,
    part,
    released,
)
from support.harnesses.decider_run import DeciderRun


def begun(offset: int, step: int = 20, attempt: int = 1) -> CheckpointBegun:
    return CheckpointBegun(job_id=JOB, attempt=attempt, step=step, partition=0, offset=offset)


WHOLE = CheckpointSaved(job_id=JOB, attempt=1, step=20, world_size=2)


@pytest.fixture
def run() -> DeciderRun[CheckpointState, Reports]:
    run = checkpoint_run()
    run.feed(allocated())
    return run


def test_with_all_ranks_on_disks_it_is_saved_once(
    run: DeciderRun[CheckpointState, Reports],
) -> None:
    assert run.feed(on_node(0)) == [begun(2)]
    assert run.feed(on_node(0)) == []
    assert run.feed(on_node(1)) == [WHOLE]
    assert run.feed(on_node(1)) == []


def test_one_node_may_have_all_ranks(run: DeciderRun[CheckpointState, Reports]) -> None:
    assert run.feed(on_node(0, 1))[-1] == WHOLE


def test_steps_are_counted_apart(run: DeciderRun[CheckpointState, Reports]) -> None:
    run.feed(on_node(0, step=20))
    assert run.feed(on_node(1, step=40)) == [begun(3, step=40)]


@pytest.mark.parametrize(
    "saved",
    [on_node(0, 1, attempt=2), on_node(0, 1, 2), on_node(2)],
    ids=["another attempt", "a rank too many", "a rank that is none"],
)
def test_what_is_not_of_the_live_gang_counts_for_nothing(
    run: DeciderRun[CheckpointState, Reports], saved: NodeSaved
) -> None:
    assert run.feed(saved) == []


def test_nothing_is_saved_after_the_attempt(run: DeciderRun[CheckpointState, Reports]) -> None:
    run.feed(on_node(0))
    run.feed(released())
    assert run.feed(on_node(1)) == []
    run.feed(allocated(2))
    assert run.feed(on_node(1, attempt=2)) == [begun(6, attempt=2)]


def test_what_is_committed_need_not_be_saved(run: DeciderRun[CheckpointState, Reports]) -> None:
    run.feed(on_node(0))
    commit(run, 20)
    assert run.feed(on_node(1)) == []


def test_what_is_remembered_is_bounded(run: DeciderRun[CheckpointState, Reports]) -> None:
    for step in range(MAX_OPEN + 1):
        run.feed(on_node(0, step=step))
    assert len(run.state.jobs[JOB].open) == MAX_OPEN
    assert run.feed(on_node(1, step=0)) == [], "it was given up"


def test_what_nodes_reported_survives_a_takeover(run: DeciderRun[CheckpointState, Reports]) -> None:
    run.feed(on_node(0))
    run.take_over()
    assert run.feed(on_node(0)) == []
    assert run.feed(on_node(1)) == [WHOLE]
    run.take_over()
    assert run.feed(on_node(1)) == []


def test_a_part_that_never_comes_ends_it(run: DeciderRun[CheckpointState, Reports]) -> None:
    run.feed(part(0))
    [gone] = run.feed(lost(1))
    assert isinstance(gone, CheckpointAbandoned)
    assert gone.reason == "rank 1 of node n0: no bucket"
    assert run.feed(lost(1)) == []


def test_a_loss_of_another_attempt_or_of_a_known_part_means_nothing(
    run: DeciderRun[CheckpointState, Reports],
) -> None:
    run.feed(part(0))
    assert run.feed(lost(0)) == []
    assert run.feed(lost(1, attempt=2)) == []
    commit(run, 40)
    assert run.feed(lost(1, step=40)) == []
