"""Committed checkpoints are read again: damage is found later, at a bounded pace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gangline_checkpoints.core.model import Scrub, Scrubbed, StepId
from gangline_checkpoints.service.executor import StoreExecutor
from gangline_schemas.checkpoint import CommitRecord
from gangline_schemas.events.checkpoints import (
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointScrubbed,
    ScrubBegun,
)
from gangline_storage import LocalStore
from gangline_storage.pace import Pace
from support.builders.checkpoints import JOB, PREFIX, write_part
from support.harnesses.stored_step import (
    COMMIT,
    STEP,
    AwayStore,
    StoredStep,
    append,
    flip_bit,
    stored,
    truncate,
)

__all__ = ["stored"]


DAY_S = 24 * 3600.0
RECORD = "COMMIT.json"
Damage = Callable[[Path], object]


def committed_a_day_ago(stored: StoredStep) -> StoredStep:
    """Steps 20 and 40 are committed; a day later step 20 is to be read again."""
    for rank in (0, 1):
        stored.run.feed(write_part(stored.store, rank, 40))
    stored.settle()
    assert len(stored.run.events(CheckpointCommitted)) == 2
    [begun] = stored.run.tick(DAY_S)
    assert isinstance(begun, ScrubBegun)
    return stored


def found_after(stored: StoredStep, damage: Damage, name: str) -> CheckpointCorrupted:
    """What is found a day after the commit of step 20, with one of its files damaged."""
    committed_a_day_ago(stored)
    damage(stored.path(name))
    stored.settle()
    [event] = stored.run.events(CheckpointCorrupted)
    assert isinstance(event, CheckpointCorrupted)
    return event


def test_what_is_still_right_is_said_once_with_its_size(stored: StoredStep) -> None:
    committed_a_day_ago(stored).settle()
    [event] = stored.run.events(CheckpointScrubbed)
    assert isinstance(event, CheckpointScrubbed)
    sizes = {item.key.rsplit("/")[-1]: item.size_bytes for item in stored.store.list(f"{STEP}/")}
    assert event.size_bytes == sum(sizes.values()) - sizes[RECORD]
    stored.run.tick(10.0)
    stored.settle()
    assert [item.step for item in stored.run.events(CheckpointScrubbed)] == [20, 40]  # type: ignore[attr-defined]
    assert stored.run.tick(3600.0) == []


@pytest.mark.parametrize("damage", [flip_bit, truncate, append, Path.unlink])
@pytest.mark.parametrize("name", ["rank-00001.bin", "rank-00000.json"])
def test_later_damage_is_found_and_named_and_no_attempt_starts_there(
    stored: StoredStep, damage: Damage, name: str
) -> None:
    event = found_after(stored, damage, name)
    assert (event.step, event.key) == (20, f"{STEP}/{name}")
    assert event.reason
    stored.run.tick(10.0)
    stored.settle()
    [right] = stored.run.events(CheckpointScrubbed)
    assert right.step == 40  # type: ignore[attr-defined]
    assert [(item.step, item.healthy) for item in stored.run.state.jobs[JOB].kept] == [(40, True)]
    assert list(stored.store.list(f"{STEP}/")) == []  # of no use beside a newer one


def other_content(path: Path) -> None:
    record = CommitRecord.decode(path.read_bytes())
    path.write_bytes(record.model_copy(update={"step": 21}).encode())


def fewer_objects(path: Path) -> None:
    record = CommitRecord.decode(path.read_bytes())
    path.write_bytes(record.model_copy(update={"shards": record.shards[:1]}).encode())


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "cannot be read"),
        (Path.unlink, "is missing"),
        (other_content, "is of another checkpoint"),
        (fewer_objects, "is of another checkpoint"),
    ],
)
def test_damage_of_the_commit_record_is_found(
    stored: StoredStep, damage: Damage, reason: str
) -> None:
    event = found_after(stored, damage, RECORD)
    assert (event.key, event.reason) == (COMMIT, reason)


class FlickeringStore(LocalStore):
    """A local store whose first read of a shard gives other bytes than are stored."""

    wrong = 1

    def stream(self, key: str, chunk_bytes: int = 1 << 20) -> Iterator[bytes]:
        if self.wrong and key.endswith(".bin"):
            self.wrong -= 1
            return iter([b"x" * self.head(key).size_bytes])
        return super().stream(key, chunk_bytes)


def test_what_is_right_when_read_once_more_is_not_called_corrupted(stored: StoredStep) -> None:
    committed_a_day_ago(stored)
    stored.execute = StoreExecutor(FlickeringStore(stored.store.root))
    stored.settle()
    assert len(stored.run.events(CheckpointScrubbed)) == 1
    assert not stored.run.events(CheckpointCorrupted)


def unmounted(root: Path) -> LocalStore:
    return LocalStore(root.with_name("unmounted"))


@pytest.mark.parametrize("store", [AwayStore, unmounted])
def test_a_store_that_is_away_says_nothing_of_the_bytes(
    stored: StoredStep, store: Callable[[Path], LocalStore]
) -> None:
    committed_a_day_ago(stored)
    stored.execute = StoreExecutor(store(stored.store.root))
    stored.settle()
    assert not stored.run.events(CheckpointScrubbed)
    assert not stored.run.events(CheckpointCorrupted)
    assert stored.run.tick(3600.0)
    stored.execute = StoreExecutor(stored.store)
    stored.settle()
    assert len(stored.run.events(CheckpointScrubbed)) == 1


def test_reading_again_keeps_to_its_pace(stored: StoredStep) -> None:
    stored.settle()
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    pace = Pace(10.0, clock=lambda: now[0], pause=pause)
    execute = StoreExecutor(stored.store, pace=pace)
    outcome = execute("scrub", Scrub(JOB, PREFIX, StepId(1, 20), 2))
    assert isinstance(outcome, Scrubbed)
    assert now[0] == pytest.approx(outcome.size_bytes / 10.0)
