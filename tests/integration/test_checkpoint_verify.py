"""The executor over a real store: what is verified is what lies there, byte for byte."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gangline_checkpoints.core.model import (
    Away,
    Corrupt,
    Delete,
    Refused,
    Removed,
    StepId,
    Verified,
    Verify,
)
from gangline_checkpoints.service.executor import StoreExecutor
from gangline_schemas.checkpoint import MAX_MANIFEST_BYTES, MAX_MANIFESTS_BYTES, CommitRecord
from gangline_schemas.events.checkpoints import (
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointCorrupted,
    ObjectsDeleted,
)
from gangline_storage import LocalStore, StoreError, StoreUnavailable, digest_bytes
from support.builders.checkpoints import JOB, PREFIX, allocated, part, resumes, rows_of, write_part
from support.harnesses.decider_run import START
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


def test_a_whole_checkpoint_is_committed_with_its_complete_record(stored: StoredStep) -> None:
    stored.settle()
    [event] = stored.run.events(CheckpointCommitted)
    assert isinstance(event, CheckpointCommitted)
    assert event.checkpoint.commit_key == COMMIT
    record = CommitRecord.decode(stored.store.get(COMMIT))
    objects = [*record.manifests, *record.shards]
    assert [digest_bytes(stored.store.get(item.key)) for item in objects] == [
        item.xxh3 for item in objects
    ]
    assert event.size_bytes == sum(item.size_bytes for item in objects)


@pytest.mark.parametrize("damage", [flip_bit, truncate, append, Path.unlink])
@pytest.mark.parametrize("name", ["rank-00001.bin", "rank-00000.json"])
def test_damage_is_found_and_nothing_of_it_is_kept(
    stored: StoredStep, damage: object, name: str
) -> None:
    assert callable(damage)
    damage(stored.path(name))
    outcome = stored.verify()
    assert isinstance(outcome, Corrupt)
    assert outcome.key == f"{STEP}/{name}"
    stored.settle()
    assert not stored.run.events(CheckpointCommitted)
    assert len(stored.run.events(CheckpointCorrupted)) == 1
    assert len(stored.run.events(ObjectsDeleted)) == 1
    assert list(stored.store.list(PREFIX)) == []


def test_manifests_that_do_not_cover_the_tensor_are_no_checkpoint(tmp_path: Path) -> None:
    stored = StoredStep(tmp_path)
    stored.run.feed(write_part(stored.store, 0, 40))
    stored.run.feed(write_part(stored.store, 1, 40, tensors=(rows_of(0, 2),)))
    stored.settle()
    committed = stored.run.events(CheckpointCommitted)
    [abandoned] = stored.run.events(CheckpointAbandoned)
    assert [event.checkpoint.step for event in committed] == [20]  # type: ignore[attr-defined]
    assert isinstance(abandoned, CheckpointAbandoned)
    assert abandoned.reason == "tensor layer.weight: the slices hold 12 of 24 elements"


def test_a_crash_between_record_and_event_ends_in_one_commit(stored: StoredStep) -> None:
    assert isinstance(stored.verify(), Verified)
    written = stored.store.get(COMMIT)
    # the process died before the event: the next one does it again, at another time
    stored.run.take_over()
    stored.execute = StoreExecutor(stored.store)
    stored.settle()
    assert len(stored.run.events(CheckpointCommitted)) == 1
    assert stored.store.get(COMMIT) == written


@pytest.mark.parametrize("there", [b"not json", b"{}"])
def test_a_foreign_commit_record_is_not_taken_for_ours(stored: StoredStep, there: bytes) -> None:
    stored.store.put(COMMIT, there)
    assert isinstance(stored.verify(), Refused)
    stored.settle()
    assert not stored.run.events(CheckpointCommitted)
    assert list(stored.store.list(PREFIX)) == []


def test_a_commit_record_of_other_content_is_not_taken_for_ours(stored: StoredStep) -> None:
    stored.verify()
    record = CommitRecord.decode(stored.store.get(COMMIT))
    stored.store.put(COMMIT, record.model_copy(update={"metrics": {"loss": 1.0}}).encode())
    assert isinstance(stored.verify(), Refused)


def test_a_prefix_that_no_store_can_hold_ends_in_abandonment_not_in_a_crash(
    stored: StoredStep,
) -> None:
    [(key, effect)] = stored.run.effects().items()
    assert isinstance(effect, Verify)
    nowhere = replace(effect, prefix="teams/nlp/a//b/job-1", shards=())
    assert isinstance(stored.execute(key, nowhere), Refused)
    delete = Delete(JOB, "teams/nlp/a//b/job-1", effect.id, 0)
    assert stored.execute("delete", delete) == Removed(0)


@pytest.mark.parametrize(
    "error", [StoreUnavailable("no answer"), StoreError("get k: S3 refused access")]
)
def test_a_store_that_is_away_delays_the_commit_and_loses_nothing(
    stored: StoredStep, error: StoreError
) -> None:
    store = AwayStore(stored.store.root)
    store.error = error
    stored.execute = StoreExecutor(store, clock=lambda: START, pause=stored.pauses.append)
    assert stored.verify() == Away(str(error))
    stored.settle()
    assert len(stored.run.events(CheckpointCommitted)) == 1
    assert stored.pauses == [0.5, 1.0]  # the later tries wait before they begin


class MeetingStore(LocalStore):
    """A local store that gives a shard only while another one is being read, too."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.meeting = threading.Barrier(2)

    def stream(self, key: str, chunk_bytes: int = 1 << 20) -> Iterator[bytes]:
        if key.endswith(".bin"):
            self.meeting.wait(60.0)
        return super().stream(key, chunk_bytes)


def test_the_files_of_a_save_are_read_at_the_same_time(stored: StoredStep) -> None:
    stored.execute = StoreExecutor(MeetingStore(stored.store.root))
    assert isinstance(stored.verify(), Verified)


class StuckStore(LocalStore):
    """A local store that gives no shard of step 20 before it is released."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked, self.released = threading.Event(), threading.Event()

    def stream(self, key: str, chunk_bytes: int = 1 << 20) -> Iterator[bytes]:
        if key.startswith(STEP) and key.endswith(".bin"):
            self.asked.set()
            self.released.wait(60.0)
        return super().stream(key, chunk_bytes)


def test_a_save_that_is_long_in_reading_holds_up_no_other(stored: StoredStep) -> None:
    store = StuckStore(stored.store.root)
    stored.execute = StoreExecutor(store, files_at_once=1)
    parts = tuple(write_part(store, rank, 40) for rank in (0, 1))
    other = Verify(JOB, PREFIX, StepId(1, 40), 2, parts, 0)
    with ThreadPoolExecutor(1) as thread:
        long = thread.submit(stored.verify)
        assert store.asked.wait(60.0)
        assert isinstance(stored.execute("verify", other), Verified)
        assert not long.done()
        store.released.set()
        assert isinstance(long.result(), Verified)


def test_manifests_that_are_too_much_for_memory_are_refused_unread(tmp_path: Path) -> None:
    ranks = MAX_MANIFESTS_BYTES // MAX_MANIFEST_BYTES + 1
    shards = []
    for rank in range(ranks):
        written = part(rank, world_size=ranks)
        large = written.manifest.model_copy(update={"size_bytes": MAX_MANIFEST_BYTES})
        shards.append(written.model_copy(update={"manifest": large}))
    empty = LocalStore(tmp_path / "store")
    effect = Verify(JOB, PREFIX, StepId(1, 20), ranks, tuple(shards), tries=0)
    outcome = StoreExecutor(empty)("verify", effect)
    assert isinstance(outcome, Refused)
    assert f"above {MAX_MANIFESTS_BYTES}" in outcome.reason


def test_of_several_damaged_files_that_of_the_first_rank_is_named(stored: StoredStep) -> None:
    for rank in (0, 1):
        stored.path(f"rank-0000{rank}.bin").write_bytes(b"")
    outcome = stored.verify()
    assert isinstance(outcome, Corrupt)
    assert outcome.key == f"{STEP}/rank-00000.bin"


def test_a_slow_verification_does_not_commit_after_a_newer_attempt(stored: StoredStep) -> None:
    [(key, effect)] = stored.run.effects().items()
    stored.run.feed(allocated(2))  # while the old one's bytes are still being read
    outcome = stored.execute(key, effect)
    assert isinstance(outcome, Verified)
    assert stored.store.get(COMMIT)
    stored.run.done(key, outcome)
    assert not stored.run.events(CheckpointCommitted)
    stored.settle()
    assert list(stored.store.list(PREFIX)) == []


def test_retention_deletes_the_objects_of_what_fell_out_and_no_others(stored: StoredStep) -> None:
    for step in (40, 60, 80):
        for rank in (0, 1):
            stored.run.feed(write_part(stored.store, rank, step))
        stored.settle()
        assert f"{STEP}/COMMIT.json" in {info.key for info in stored.store.list(PREFIX)}
    stored.run.feed(resumes(1, 80))
    stored.settle()
    left = {info.key.split("/")[-2] for info in stored.store.list(PREFIX)}
    assert left == {"step-0000000040", "step-0000000060", "step-0000000080"}
