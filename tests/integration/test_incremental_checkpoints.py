"""Incremental checkpoints from a rank's tensors to the store and back, through all real parts.

Two ranks train a model with a frozen half; their agent uploads, the service verifies and commits,
another node fetches, a rank loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from gangline_checkpoints.core.model import Corrupt, Refused, Scrub, Verified
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.state import CheckpointState
from gangline_checkpoints.service.executor import StoreExecutor
from gangline_schemas.checkpoint import (
    Chunk,
    CommitRecord,
    RankManifest,
    checkpoint_prefix,
    commit_key,
    manifest_name,
    shard_name,
    step_folder,
)
from gangline_schemas.checkpoint_policy import Incremental, Retention
from gangline_schemas.events.checkpoints import (
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointCorrupted,
)
from gangline_schemas.events.scheduling import CheckpointRef
from gangline_schemas.events.workers import CheckpointShardWritten
from gangline_schemas.rank_protocol import ShardReady
from gangline_storage import LocalStore
from gangline_storage.digest import digest_bytes
from gangline_storage.pace import Pace
from gangline_worker.agent.checkpoints.integrity import CheckpointDamaged
from gangline_worker.agent.checkpoints.transfer import Checkpoints
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.checkpoint.files import CorruptCheckpoint
from gangline_worker.checkpoint.loader import Checkpoint
from gangline_worker.checkpoint.local import holdings
from gangline_worker.checkpoint.saver import AsyncSaver, SaverIdentity
from support.builders.checkpoints import (
    JOB,
    PREFIX,
    allocated,
    checkpoint_run,
    could_not_start,
    resumes,
)
from support.harnesses.decider_run import DeciderRun

DIM = 512
WORLD = 2


class CountingStore(LocalStore):
    """A store that knows what was read of it."""

    read: dict[str, int]

    def stream(self, key: str) -> Iterator[bytes]:
        for data in super().stream(key):
            self.read[key] = self.read.get(key, 0) + len(data)
            yield data


class Job:
    """A job with incremental saves: its model, its ranks' savers, its agent, and the service."""

    def __init__(self, folder: Path, full_every: int = 4) -> None:
        self.folder = folder
        self.store = CountingStore(folder / "store")
        self.store.read = {}
        self.node = Checkpoints(folder / "node", self.store, node_id="n1", link=False)
        self.allocation = allocated(
            keep=Retention(latest=2), incremental=Incremental(full_every=full_every)
        )
        self.run: DeciderRun[CheckpointState, Reports] = checkpoint_run()
        self.run.feed(self.allocation)
        self.execute = StoreExecutor(self.store)
        self.committed: int | None = None
        self.said: list[ShardReady] = []
        self.savers = [
            AsyncSaver(
                SaverIdentity(self.node.folder(JOB), JOB, 1, rank, WORLD, full_every),
                self.said.append,
                lambda: self.committed,
            )
            for rank in range(WORLD)
        ]
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(DIM, DIM), nn.Linear(DIM, DIM))
        self.model[0].requires_grad_(requires_grad=False)
        self.optimizer = torch.optim.SGD(self.model[1].parameters(), lr=0.1)

    def step(self) -> None:
        self.model(torch.randn(4, DIM)).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items()}

    def write(self, step: int) -> list[CheckpointShardWritten]:
        """Both ranks save, their agent uploads; for the service to read."""
        self.said.clear()
        for saver in self.savers:
            saver.begin(step, self.tensors, {"step": step}, {})
            saver.wait()
            assert [result.error for result in saver.results()] == [None]
        return [self._bring(ready) for ready in sorted(self.said, key=lambda ready: ready.rank)]

    def _bring(self, ready: ShardReady) -> CheckpointShardWritten:
        rank = RankKey(GangKey(JOB, 1), ready.rank)
        self.node.check(rank, self.allocation, ready)
        return self.node.upload(rank, self.allocation, ready)

    def save(self, step: int) -> CheckpointCommitted:
        """Train a step, save, commit, tell the ranks."""
        self.step()
        for written in self.write(step):
            self.run.feed(written)
        self.settle()
        event = self.run.events(CheckpointCommitted)[-1]
        assert isinstance(event, CheckpointCommitted)
        assert event.checkpoint.step == step, self.run.events(CheckpointAbandoned)
        self.run.feed(resumes(1, step))
        self.committed = step
        return event

    def settle(self) -> None:
        for _ in range(20):
            for key, effect in self.run.effects().items():
                self.run.done(key, self.execute(key, effect))

    def ref(self, step: int) -> CheckpointRef:
        return CheckpointRef(
            job_id=JOB,
            attempt=1,
            step=step,
            world_size=WORLD,
            commit_key=commit_key(PREFIX, 1, step),
        )

    def record(self, step: int) -> CommitRecord:
        return CommitRecord.decode(self.store.get(commit_key(PREFIX, 1, step)))

    def has_record(self, step: int) -> bool:
        return (self.store.root / commit_key(PREFIX, 1, step)).exists()

    def another_node(self) -> Checkpoints:
        return Checkpoints(self.folder / "other", self.store, node_id="n2", link=False)

    def loaded(
        self, folder: Path, rank: int = 0, world: int = 1, **repair: Callable[..., bool]
    ) -> dict[str, torch.Tensor]:
        found = {name: torch.full_like(tensor, 9) for name, tensor in self.tensors.items()}
        checkpoint = Checkpoint(folder, **repair, rank=rank, world_size=world)
        checkpoint.fill(holdings(found, rank, world))
        return found

    def is_now(self, found: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(found[name], tensor) for name, tensor in self.tensors.items())


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_half_of_the_bytes_is_written_where_half_is_frozen_and_all_come_back(job: Job) -> None:
    first = job.save(10)
    whole = 2 * (DIM * DIM + DIM) * 4
    assert whole < first.size_bytes < whole + 20_000
    assert (first.whole_bytes, first.refers) == (None, ())
    for step in (20, 30):
        event = job.save(step)
        assert 0.48 < event.size_bytes / first.size_bytes < 0.53
        assert event.refers == (10,)
        assert event.whole_bytes is not None
        assert 0.99 < event.whole_bytes / first.size_bytes < 1.02
    for rank, world in ((0, 1), (1, 2), (2, 3)):
        folder = job.another_node().fetch(job.ref(30), "nlp")
        assert job.is_now(job.loaded(folder, rank, world))
    assert (folder.parent / step_folder(10) / shard_name(0)).exists()
    assert job.save(40).refers == (10,)
    assert job.save(50).refers == (), "each fourth is whole"
    kept = [item.id.step for item in job.run.state.jobs[JOB].kept]
    assert kept == [10, 30, 40, 50], "two, a third of a running attempt, and what these need"


def test_an_unchanged_state_costs_its_manifests_alone(job: Job) -> None:
    first = job.save(10)
    job.step = lambda: None  # type: ignore[method-assign]
    event = job.save(20)
    assert event.size_bytes < 20_000 < first.size_bytes
    assert job.is_now(job.loaded(job.another_node().fetch(job.ref(20), "nlp")))


def test_a_commit_reads_what_was_written_and_scrubbing_each_object_once(job: Job) -> None:
    job.save(10)
    old = set(job.store.read)
    job.store.read.clear()
    job.save(20)
    assert not old & job.store.read.keys(), "a referred chunk is known by its digest"
    job.execute = StoreExecutor(job.store)  # another process: it reads the manifests again
    job.store.read.clear()
    job.save(30)
    assert old & job.store.read.keys() == {digest.key for digest in job.record(10).manifests}
    spent: list[int] = []
    pace = Pace()
    pace.spend = spent.append  # type: ignore[method-assign]
    execute = StoreExecutor(job.store, pace=pace)
    job.store.read.clear()
    job.run.tick(90_000)
    for _ in range(3):
        [(key, effect)] = job.run.effects().items()
        assert isinstance(effect, Scrub)
        job.run.done(key, execute(key, effect))
        job.run.tick(60)
    records = [job.record(step) for step in (10, 20, 30)]
    objects = [digest for found in records for digest in (*found.manifests, *found.shards)]
    assert job.store.read == {digest.key: digest.size_bytes for digest in objects}
    assert sum(spent) == sum(digest.size_bytes for digest in objects)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1
    path.write_bytes(data)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip, shorten, Path.unlink])
def test_damage_on_the_node_is_mended_from_the_store(
    job: Job, damage: Callable[[Path], None]
) -> None:
    job.save(10)
    job.save(20)
    node = job.another_node()
    folder = node.fetch(job.ref(20), "nlp")
    path = folder.parent / step_folder(10) / shard_name(1)
    if damage is not flip:  # by its size; readers check each byte
        damage(path)
        assert job.is_now(job.loaded(node.fetch(job.ref(20), "nlp")))
    damage(path)
    with pytest.raises(CorruptCheckpoint) as found:
        job.loaded(folder)
    assert found.value.path == path
    asked: list[str] = []

    def another_copy(damage: CorruptCheckpoint) -> bool:
        asked.append(f"{damage.path.parent.name}/{damage.path.name}")
        node.refetch(job.ref(20), "nlp", asked[-1])
        return True

    assert job.is_now(job.loaded(folder, repair=another_copy))
    assert asked == [f"{step_folder(10)}/{shard_name(1)}"]


@pytest.mark.parametrize("damage", [flip, shorten, Path.unlink])
def test_damage_in_the_store_marks_all_that_refer_and_the_next_save_is_whole(
    job: Job, damage: Callable[[Path], None]
) -> None:
    for step in (10, 20, 30):
        job.save(step)
    key = f"{checkpoint_prefix(PREFIX, 1, 10)}/{shard_name(1)}"
    damage(job.store.root / key)
    with pytest.raises(CheckpointDamaged) as found:
        job.another_node().fetch(job.ref(30), "nlp")
    assert found.value.key == key
    job.run.feed(could_not_start(key))
    marked = [event.step for event in job.run.events(CheckpointCorrupted)]  # type: ignore[attr-defined]
    assert marked == [10, 20, 30]
    job.committed = None  # so the scheduler says, and the agent after it
    assert job.save(40).refers == ()
    assert job.is_now(job.loaded(job.another_node().fetch(job.ref(40), "nlp")))


def test_a_rank_that_was_not_told_in_time_loses_that_save_alone(job: Job) -> None:
    job.save(10)
    key, folder = f"{checkpoint_prefix(PREFIX, 1, 10)}/{manifest_name(0)}", job.store.root
    flip(folder / key)
    job.execute = StoreExecutor(job.store)
    job.step()
    for written in job.write(20):
        job.run.feed(written)
    [(verify, effect)] = job.run.effects().items()
    outcome = job.execute(verify, effect)
    assert isinstance(outcome, Refused)
    assert f"what it refers to is not as it was committed: {key}" in outcome.reason
    job.run.done(verify, outcome)
    job.settle()
    assert not job.has_record(20)
    job.committed = None
    assert job.save(30).refers == ()


def forged(chunks: tuple[Chunk, ...], how: str) -> tuple[Chunk, ...]:
    """Chunks that name other bytes than lie there; the last is the rank's own."""
    first, last = chunks[0], chunks[-1]
    changed = {
        "digest": [first.model_copy(update={"xxh3": "0" * 32}), *chunks[1:]],
        "offset": [first.model_copy(update={"byte_offset": 64}), *chunks[1:]],
        "later": [first.model_copy(update={"step": 99}), *chunks[1:]],
        "missing": [first.model_copy(update={"step": 5}), *chunks[1:]],
        "own digest": [*chunks[:-1], last.model_copy(update={"xxh3": "0" * 32})],
        "own offset": [*chunks[:-1], last.model_copy(update={"byte_offset": 4})],
    }
    return tuple(changed[how])


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("digest", "that it did not write"),
        ("offset", "that it did not write"),
        ("later", "which is later"),
        ("missing", "is missing"),
        ("own digest", "gives another digest"),
        ("own offset", "does not begin at"),
    ],
)
def test_a_manifest_that_names_other_bytes_is_not_committed(job: Job, how: str, what: str) -> None:
    job.save(10)
    job.step()
    parts = job.write(20)
    digest = parts[0].manifest
    manifest = RankManifest.decode(job.store.get(digest.key))
    chunks = manifest.chunks or ()
    assert [chunk.step for chunk in (chunks[0], chunks[-1])] == [10, 20]
    raw = manifest.model_copy(update={"chunks": forged(chunks, how)}).encode()
    job.store.put(digest.key, raw)
    told = digest.model_copy(update={"size_bytes": len(raw), "xxh3": digest_bytes(raw)})
    parts[0] = parts[0].model_copy(update={"manifest": told})
    for written in parts:
        job.run.feed(written)
    [(key, effect)] = job.run.effects().items()
    outcome = job.execute(key, effect)
    assert isinstance(outcome, Refused | Corrupt)
    assert what in outcome.reason
    assert not job.has_record(20)


def test_the_local_copies_of_what_is_referred_to_stay(job: Job) -> None:
    def left() -> list[str]:
        job.node.prune(JOB)
        return sorted(path.name for path in (job.node.folder(JOB) / "attempt-0001").iterdir())

    for step in (10, 20, 30):
        job.save(step)
    assert left() == [step_folder(step) for step in (10, 20, 30)]
    job.save(40)
    assert left() == [step_folder(step) for step in (10, 30, 40)]
    for step in (50, 60):
        job.save(step)
    assert left() == [step_folder(step) for step in (50, 60)]
    other = job.another_node()
    other.fetch(job.ref(60), "nlp")
    other.prune(JOB, keep_steps=1)
    assert job.is_now(job.loaded(other.folder(JOB) / "attempt-0001" / step_folder(60)))


def test_a_verification_that_is_done_again_finds_its_own_record(job: Job) -> None:
    job.save(10)
    job.step()
    for written in job.write(20):
        job.run.feed(written)
    [(key, effect)] = job.run.effects().items()
    assert isinstance(job.execute(key, effect), Verified)
    again = job.execute(key, effect)
    assert isinstance(again, Verified)
    assert again.refers == (10,)
