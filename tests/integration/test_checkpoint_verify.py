"""The executor over a real store: what is verified is what lies there, byte for byte."""

from __future__ import annotations

import threading
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
    Scrub,
    Scrubbed,
    StepId,
    Verified,
    Verify,
)
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.state import CheckpointState
from gangline_checkpoints.service.executor import StoreExecutor
from gangline_schemas.checkpoint import (
    MAX_MANIFEST_BYTES,
    MAX_MANIFESTS_BYTES,
    CommitRecord,
    commit_key,
)
from gangline_schemas.events.checkpoints import (
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointScrubbed,
    ObjectsDeleted,
    ScrubBegun,
)
from gangline_storage import LocalStore, StoreError, StoreUnavailable, digest_bytes
from gangline_storage.pace import Pace
from support.builders.checkpoints import (
    JOB,
    PREFIX,
    allocated,
    checkpoint_run,
    part,
    resumes,
    rows_of,
    write_part,
)
from support.harnesses.decider_run import START, DeciderRun

STEP = f"{PREFIX}/attempt-0001/step-0000000020"
COMMIT = commit_key(PREFIX, 1, 20)


class Scene:
    """Two ranks wrote step 20 of attempt 1 into a real store."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder / "store")
        self.pauses: list[float] = []
        self.execute = StoreExecutor(self.store, clock=lambda: START, pause=self.pauses.append)
        self.run: DeciderRun[CheckpointState, Reports] = checkpoint_run()
        self.run.feed(allocated())
        for rank in (0, 1):
            self.run.feed(write_part(self.store, rank))

    def path(self, name: str) -> Path:
        return self.store.root / STEP / name

    def verify(self) -> object:
        [(key, effect)] = self.run.effects().items()
        return self.execute(key, effect)

    def settle(self) -> None:
        """Perform until nothing is asked for."""
        for _ in range(20):
            effects = self.run.effects()
            if not effects:
                return
            for key, effect in effects.items():
                self.run.done(key, self.execute(key, effect))
        raise AssertionError(f"still wanted: {sorted(self.run.effects())}")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_whole_checkpoint_is_committed_with_its_complete_record(scene: Scene) -> None:
    scene.settle()
    [event] = scene.run.events(CheckpointCommitted)
    assert isinstance(event, CheckpointCommitted)
    assert event.checkpoint.commit_key == COMMIT
    record = CommitRecord.decode(scene.store.get(COMMIT))
    objects = [*record.manifests, *record.shards]
    assert [digest_bytes(scene.store.get(item.key)) for item in objects] == [
        item.xxh3 for item in objects
    ]
    assert event.size_bytes == sum(item.size_bytes for item in objects)


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize("damage", [flip_bit, truncate, append, Path.unlink])
@pytest.mark.parametrize("name", ["rank-00001.bin", "rank-00000.json"])
def test_damage_is_found_and_nothing_of_it_is_kept(scene: Scene, damage: object, name: str) -> None:
    assert callable(damage)
    damage(scene.path(name))
    outcome = scene.verify()
    assert isinstance(outcome, Corrupt)
    assert outcome.key == f"{STEP}/{name}"
    scene.settle()
    assert not scene.run.events(CheckpointCommitted)
    assert len(scene.run.events(CheckpointCorrupted)) == 1
    assert len(scene.run.events(ObjectsDeleted)) == 1
    assert list(scene.store.list(PREFIX)) == []


def test_manifests_that_do_not_cover_the_tensor_are_no_checkpoint(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run.feed(write_part(scene.store, 0, 40))
    scene.run.feed(write_part(scene.store, 1, 40, tensors=(rows_of(0, 2),)))
    scene.settle()
    committed = scene.run.events(CheckpointCommitted)
    [abandoned] = scene.run.events(CheckpointAbandoned)
    assert [event.checkpoint.step for event in committed] == [20]  # type: ignore[attr-defined]
    assert isinstance(abandoned, CheckpointAbandoned)
    assert abandoned.reason == "tensor layer.weight: the slices hold 12 of 24 elements"


def test_a_crash_between_record_and_event_ends_in_one_commit(scene: Scene) -> None:
    assert isinstance(scene.verify(), Verified)
    written = scene.store.get(COMMIT)
    # the process died before the event: the next one does it again, at another time
    scene.run.take_over()
    scene.execute = StoreExecutor(scene.store)
    scene.settle()
    assert len(scene.run.events(CheckpointCommitted)) == 1
    assert scene.store.get(COMMIT) == written


@pytest.mark.parametrize("there", [b"not json", b"{}"])
def test_a_foreign_commit_record_is_not_taken_for_ours(scene: Scene, there: bytes) -> None:
    scene.store.put(COMMIT, there)
    assert isinstance(scene.verify(), Refused)
    scene.settle()
    assert not scene.run.events(CheckpointCommitted)
    assert list(scene.store.list(PREFIX)) == []


def test_a_commit_record_of_other_content_is_not_taken_for_ours(scene: Scene) -> None:
    scene.verify()
    record = CommitRecord.decode(scene.store.get(COMMIT))
    scene.store.put(COMMIT, record.model_copy(update={"metrics": {"loss": 1.0}}).encode())
    assert isinstance(scene.verify(), Refused)


def test_a_prefix_that_no_store_can_hold_ends_in_abandonment_not_in_a_crash(scene: Scene) -> None:
    [(key, effect)] = scene.run.effects().items()
    assert isinstance(effect, Verify)
    nowhere = replace(effect, prefix="teams/nlp/a//b/job-1", shards=())
    assert isinstance(scene.execute(key, nowhere), Refused)
    delete = Delete(JOB, "teams/nlp/a//b/job-1", effect.id, 0)
    assert scene.execute("delete", delete) == Removed(0)


class AwayStore(LocalStore):
    """A local store that does not answer the first `away` reads of rank 0's manifest."""

    away = 3
    error: StoreError = StoreUnavailable("no answer")

    def stream(self, key: str, chunk_bytes: int = 1 << 20):  # type: ignore[no-untyped-def]
        if self.away and key.endswith("rank-00000.json"):
            self.away -= 1
            raise self.error
        return super().stream(key, chunk_bytes)


@pytest.mark.parametrize(
    "error", [StoreUnavailable("no answer"), StoreError("get k: S3 refused access")]
)
def test_a_store_that_is_away_delays_the_commit_and_loses_nothing(
    scene: Scene, error: StoreError
) -> None:
    store = AwayStore(scene.store.root)
    store.error = error
    scene.execute = StoreExecutor(store, clock=lambda: START, pause=scene.pauses.append)
    assert scene.verify() == Away(str(error))
    scene.settle()
    assert len(scene.run.events(CheckpointCommitted)) == 1
    assert scene.pauses == [0.5, 1.0]  # the later tries wait before they begin


class MeetingStore(LocalStore):
    """A local store that gives a shard only while another one is being read, too."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.meeting = threading.Barrier(2)

    def stream(self, key: str, chunk_bytes: int = 1 << 20):  # type: ignore[no-untyped-def]
        if key.endswith(".bin"):
            self.meeting.wait(60.0)
        return super().stream(key, chunk_bytes)


def test_the_files_of_a_save_are_read_at_the_same_time(scene: Scene) -> None:
    scene.execute = StoreExecutor(MeetingStore(scene.store.root))
    assert isinstance(scene.verify(), Verified)


class StuckStore(LocalStore):
    """A local store that gives no shard of step 20 before it is released."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked, self.released = threading.Event(), threading.Event()

    def stream(self, key: str, chunk_bytes: int = 1 << 20):  # type: ignore[no-untyped-def]
        if key.startswith(STEP) and key.endswith(".bin"):
            self.asked.set()
            self.released.wait(60.0)
        return super().stream(key, chunk_bytes)


def test_a_save_that_is_long_in_reading_holds_up_no_other(scene: Scene) -> None:
    store = StuckStore(scene.store.root)
    scene.execute = StoreExecutor(store, files_at_once=1)
    parts = tuple(write_part(store, rank, 40) for rank in (0, 1))
    other = Verify(JOB, PREFIX, StepId(1, 40), 2, parts, 0)
    with ThreadPoolExecutor(1) as thread:
        long = thread.submit(scene.verify)
        assert store.asked.wait(60.0)
        assert isinstance(scene.execute("verify", other), Verified)
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


def test_of_several_damaged_files_that_of_the_first_rank_is_named(scene: Scene) -> None:
    for rank in (0, 1):
        scene.path(f"rank-0000{rank}.bin").write_bytes(b"")
    outcome = scene.verify()
    assert isinstance(outcome, Corrupt)
    assert outcome.key == f"{STEP}/rank-00000.bin"


def test_a_slow_verification_does_not_commit_after_a_newer_attempt(scene: Scene) -> None:
    [(key, effect)] = scene.run.effects().items()
    scene.run.feed(allocated(2))  # while the old one's bytes are still being read
    outcome = scene.execute(key, effect)
    assert isinstance(outcome, Verified)
    assert scene.store.get(COMMIT)
    scene.run.done(key, outcome)
    assert not scene.run.events(CheckpointCommitted)
    scene.settle()
    assert list(scene.store.list(PREFIX)) == []


def test_retention_deletes_the_objects_of_what_fell_out_and_no_others(scene: Scene) -> None:
    for step in (40, 60, 80):
        for rank in (0, 1):
            scene.run.feed(write_part(scene.store, rank, step))
        scene.settle()
        assert f"{STEP}/COMMIT.json" in {info.key for info in scene.store.list(PREFIX)}
    scene.run.feed(resumes(1, 80))
    scene.settle()
    left = {info.key.split("/")[-2] for info in scene.store.list(PREFIX)}
    assert left == {"step-0000000040", "step-0000000060", "step-0000000080"}


DAY_S = 24 * 3600.0
RECORD = "COMMIT.json"


def committed_a_day_ago(scene: Scene) -> Scene:
    """Steps 20 and 40 are committed; a day later step 20 is to be read again."""
    for rank in (0, 1):
        scene.run.feed(write_part(scene.store, rank, 40))
    scene.settle()
    assert len(scene.run.events(CheckpointCommitted)) == 2
    [begun] = scene.run.tick(DAY_S)
    assert isinstance(begun, ScrubBegun)
    return scene


def test_what_is_still_right_is_said_once_with_its_size(scene: Scene) -> None:
    committed_a_day_ago(scene).settle()
    [event] = scene.run.events(CheckpointScrubbed)
    assert isinstance(event, CheckpointScrubbed)
    sizes = {item.key.rsplit("/")[-1]: item.size_bytes for item in scene.store.list(f"{STEP}/")}
    assert event.size_bytes == sum(sizes.values()) - sizes[RECORD]
    scene.run.tick(10.0)
    scene.settle()
    assert [item.step for item in scene.run.events(CheckpointScrubbed)] == [20, 40]  # type: ignore[attr-defined]
    assert scene.run.tick(3600.0) == []


@pytest.mark.parametrize("damage", [flip_bit, truncate, append, Path.unlink])
@pytest.mark.parametrize("name", ["rank-00001.bin", "rank-00000.json"])
def test_later_damage_is_found_and_named_and_no_attempt_starts_there(
    scene: Scene, damage: object, name: str
) -> None:
    committed_a_day_ago(scene)
    assert callable(damage)
    damage(scene.path(name))
    scene.settle()
    [event] = scene.run.events(CheckpointCorrupted)
    assert isinstance(event, CheckpointCorrupted)
    assert (event.step, event.key) == (20, f"{STEP}/{name}")
    assert event.reason
    scene.run.tick(10.0)
    scene.settle()
    [right] = scene.run.events(CheckpointScrubbed)
    assert right.step == 40  # type: ignore[attr-defined]
    assert [(item.step, item.healthy) for item in scene.run.state.jobs[JOB].kept] == [(40, True)]
    assert list(scene.store.list(f"{STEP}/")) == []  # of no use beside a newer one


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
def test_damage_of_the_commit_record_is_found(scene: Scene, damage: object, reason: str) -> None:
    committed_a_day_ago(scene)
    assert callable(damage)
    damage(scene.path(RECORD))
    scene.settle()
    [event] = scene.run.events(CheckpointCorrupted)
    assert isinstance(event, CheckpointCorrupted)
    assert (event.key, event.reason) == (COMMIT, reason)


class FlickeringStore(LocalStore):
    """A local store whose first read of a shard gives other bytes than are stored."""

    wrong = 1

    def stream(self, key: str, chunk_bytes: int = 1 << 20):  # type: ignore[no-untyped-def]
        if self.wrong and key.endswith(".bin"):
            self.wrong -= 1
            return iter([b"x" * self.head(key).size_bytes])
        return super().stream(key, chunk_bytes)


def test_what_is_right_when_read_once_more_is_not_called_corrupted(scene: Scene) -> None:
    committed_a_day_ago(scene)
    scene.execute = StoreExecutor(FlickeringStore(scene.store.root))
    scene.settle()
    assert len(scene.run.events(CheckpointScrubbed)) == 1
    assert not scene.run.events(CheckpointCorrupted)


def test_a_store_that_is_away_says_nothing_of_the_bytes(scene: Scene) -> None:
    committed_a_day_ago(scene)
    scene.execute = StoreExecutor(AwayStore(scene.store.root))
    scene.settle()
    assert not scene.run.events(CheckpointScrubbed)
    assert not scene.run.events(CheckpointCorrupted)
    assert scene.run.tick(3600.0)
    scene.execute = StoreExecutor(scene.store)
    scene.settle()
    assert len(scene.run.events(CheckpointScrubbed)) == 1


def test_reading_again_keeps_to_its_pace(scene: Scene) -> None:
    scene.settle()
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    pace = Pace(10.0, clock=lambda: now[0], pause=pause)
    execute = StoreExecutor(scene.store, pace=pace)
    outcome = execute("scrub", Scrub(JOB, PREFIX, StepId(1, 20), 2))
    assert isinstance(outcome, Scrubbed)
    assert now[0] == pytest.approx(outcome.size_bytes / 10.0)
