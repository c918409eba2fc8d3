"""Objects of which no rank reported anything: their agent died while it uploaded them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline_bus.decision import EffectDone
from gangline_checkpoints.core.model import Away, Found, Removed, StepId, Survey
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.state import CheckpointState
from gangline_checkpoints.service.executor import StoreExecutor
from gangline_schemas.checkpoint import checkpoint_prefix, manifest_name, shard_name
from gangline_schemas.events.checkpoints import CheckpointAbandoned
from gangline_schemas.events.scheduling import ReleaseReason
from gangline_service.executor import ThreadExecutor
from gangline_storage import LocalStore, StoreUnavailable
from gangline_storage.port import ObjectInfo
from support.builders.checkpoints import (
    JOB,
    PREFIX,
    allocated,
    checkpoint_run,
    commit,
    part,
    released,
)
from support.harnesses.decider_run import DeciderRun
from support.waiting import until

KEY = f"survey:{JOB}"
Run = DeciderRun[CheckpointState, Reports]


def run_that_ended(*steps: int) -> Run:
    """The second attempt of a job committed these steps, and ended nine minutes ago."""
    run = checkpoint_run()
    run.feed(allocated())
    run.feed(released())
    run.feed(allocated(attempt=2))
    for step in steps:
        commit(run, step, attempt=2)
    run.feed(released(attempt=2, reason=ReleaseReason.SUCCEEDED))
    run.tick(530)
    assert KEY not in run.effects()
    run.tick(15)
    return run


def put_part(store: LocalStore, attempt: int, step: int, rank: int) -> None:
    folder = checkpoint_prefix(PREFIX, attempt, step)
    store.put(f"{folder}/{shard_name(rank)}", b"bytes")


def abandoned(run: Run) -> list[tuple[int, int]]:
    return [(one.attempt, one.step) for one in run.events(CheckpointAbandoned)]  # type: ignore[attr-defined]


def test_what_no_rank_reported_is_deleted_after_its_job_and_what_is_kept_stays(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path)
    execute = StoreExecutor(store)
    for attempt, step, rank in ((1, 10, 3), (2, 20, 0), (2, 30, 100_000)):
        put_part(store, attempt, step, rank)
    run = run_that_ended(20)
    run.done(KEY, execute(KEY, run.effects()[KEY]))
    assert abandoned(run) == [(1, 10), (2, 30)]
    for _ in range(2):
        ((key, effect),) = [one for one in run.effects().items() if one[0].startswith("delete:")]
        run.done(key, execute(key, effect))
    assert [info.key for info in store.list()] == [
        f"{checkpoint_prefix(PREFIX, 2, 20)}/{shard_name(0)}"
    ]
    run.tick(700)
    run.feed(allocated(job_id="job-2"))
    assert JOB in run.state.archive


def test_a_checkpoint_that_can_still_be_committed_is_left_alone() -> None:
    run = checkpoint_run()
    run.feed(allocated())
    run.feed(part(0, 20))
    run.feed(released(reason=ReleaseReason.SUCCEEDED))
    run.tick(545)
    run.done(KEY, Found((StepId(1, 20), StepId(2, 5))))
    assert abandoned(run) == []
    run.feed(part(1, 20))
    assert [key for key in run.effects() if key.startswith("verify:")]


def test_a_job_that_may_start_again_is_not_surveyed() -> None:
    run = checkpoint_run()
    run.feed(allocated())
    run.feed(released())
    run.tick(545)
    assert run.effects() == {}


def test_a_report_after_that_changes_nothing() -> None:
    run = run_that_ended()
    run.done(KEY, Found((StepId(2, 30),)))
    run.done(f"delete:{JOB}:2:30:0", Removed(1))
    run.feed(part(0, 30, attempt=2))
    run.feed(part(1, 30, attempt=2))
    assert not [key for key in run.effects() if key.startswith("verify:")]
    assert f"delete:{JOB}:2:30:0" in run.effects()  # these objects go, too


def test_a_store_that_is_away_gives_up_nothing_and_is_not_asked_for_ever() -> None:
    run = run_that_ended(20)
    run.done(KEY, Away("503"))
    assert abandoned(run) == []
    run.tick(700)
    assert run.effects() == {}


class AwayAtFirst(LocalStore):
    """Its first listing fails."""

    listings = 0

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self.listings += 1
        if self.listings == 1:
            raise StoreUnavailable("503")
        return super().list(prefix)


def test_a_survey_is_made_again_when_the_store_is_back(tmp_path: Path) -> None:
    store = AwayAtFirst(tmp_path)
    put_part(store, 2, 30, 0)
    run = run_that_ended(20)
    executor = ThreadExecutor(StoreExecutor(store), first_pause_s=0.01)
    executor.submit(KEY, run.effects()[KEY])
    done: list[EffectDone] = []
    until(lambda: done.extend(executor.completed()) or done)
    assert done == [EffectDone(KEY, Found((StepId(2, 30),)))]
    run.done(KEY, done[0].result)
    assert abandoned(run) == [(2, 30)]


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "attempt-0001/notes.json",
        "attempt-0001/step-0000000010/notes.json",
        "attempt-0001/step-10/rank-00000.bin",
        "attempt-00001/step-0000000010/rank-00000.bin",
        "attempt-0001/attempt-0001/step-0000000010/rank-00000.bin",
    ],
)
def test_only_objects_of_checkpoints_are_found(tmp_path: Path, name: str) -> None:
    store = LocalStore(tmp_path)
    store.put(f"{PREFIX}/{name}", b"x")
    store.put(f"{PREFIX}0/attempt-0001/step-0000000010/{manifest_name(0)}", b"another job's")
    assert StoreExecutor(store)(KEY, Survey(JOB, PREFIX)) == Found(())
