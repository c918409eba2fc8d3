"""Where a job's checkpoints lie, as the live view knows it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from gangline_gateway.checkpoint_rows import ENDED_ROWS_KEPT, Rows, after, of_ended, of_gang
from gangline_schemas.events.checkpoints import (
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointSaved,
)
from gangline_schemas.events.scheduling import CheckpointRef

AT = datetime(2026, 11, 22, tzinfo=UTC)


def ref(step: int, attempt: int = 1) -> CheckpointRef:
    return CheckpointRef(job_id="a", attempt=attempt, step=step, world_size=2, commit_key="k")


def saved(rows: Rows, step: int, attempt: int = 1) -> Rows:
    event = CheckpointSaved(job_id="a", attempt=attempt, step=step, world_size=2)
    return after(rows, event, AT)


def committed(rows: Rows, step: int, attempt: int = 1) -> Rows:
    point = ref(step, attempt)
    event = CheckpointCommitted(job_id="a", checkpoint=point, size_bytes=1, objects=1)
    return after(rows, event, AT)


def tiers(rows: Rows) -> dict[int, str]:
    return {row.step: f"{row.status}: {'+'.join(row.tiers)}" for row in rows}


def test_a_save_lies_on_its_nodes_then_in_the_store_too() -> None:
    rows = saved((), 10)
    assert tiers(rows) == {10: "saved: nodes"}
    assert tiers(committed(rows, 10)) == {10: "committed: nodes+store"}


def test_nodes_keep_the_two_newest() -> None:
    rows: Rows = ()
    for step in (10, 20, 30):
        rows = committed(saved(rows, step), step)
    assert tiers(rows) == {
        10: "committed: store",
        20: "committed: nodes+store",
        30: "committed: nodes+store",
    }


def test_what_no_node_told_of_lies_in_the_store() -> None:
    assert tiers(committed((), 10)) == {10: "committed: store"}


def test_what_is_given_up_is_no_more() -> None:
    rows = saved(committed(saved((), 10), 10), 20)
    gone = CheckpointAbandoned(job_id="a", attempt=1, step=20, reason="r")
    assert tiers(after(rows, gone, AT)) == {10: "committed: nodes+store"}


def test_another_gang_has_what_it_starts_from() -> None:
    rows = saved(committed(saved(committed(saved((), 10), 10), 20), 20), 30)
    again = of_gang(rows, 2, ref(20))
    assert tiers(again) == {10: "committed: store", 20: "committed: nodes+store"}
    assert tiers(of_gang(rows, 2, None)) == {10: "committed: store", 20: "committed: store"}


def test_an_allocation_that_is_read_late_changes_nothing_of_its_own_gang() -> None:
    rows = committed(saved((), 10, attempt=2), 10, attempt=2)
    assert of_gang(rows, 2, None) == rows


def test_a_record_that_comes_twice_counts_once() -> None:
    rows = committed(saved((), 10), 10)
    assert saved(rows, 10) == rows


def test_a_job_that_has_ended_lies_on_no_node() -> None:
    rows = saved(committed(saved((), 10), 10), 20)
    assert tiers(of_ended(rows)) == {10: "committed: store"}


def test_of_an_ended_job_those_that_stand_and_the_newest_of_the_others_are_kept() -> None:
    rows: Rows = ()
    for step in range(1, 301):
        rows = committed(rows, step)
    deleted = tuple(row if row.step in {5, 300} else replace(row, status="deleted") for row in rows)
    steps = [row.step for row in of_ended(deleted)]
    assert steps == [5, *range(202, 301)]
    assert len(steps) == ENDED_ROWS_KEPT
