"""Saves that leave out what an earlier one wrote: what is written, and what comes back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_schemas.checkpoint import (
    CommitRecord,
    RankManifest,
    TensorSlice,
    manifest_name,
    shard_name,
    step_folder,
)
from gangline_schemas.events.workers import ObjectDigest
from gangline_schemas.rank_protocol import ShardReady
from gangline_storage.digest import digest_bytes, digest_file
from gangline_worker.checkpoint.chunks import CHUNK_BYTES, SMALL_BYTES, cut, padding
from gangline_worker.checkpoint.files import CorruptCheckpoint
from gangline_worker.checkpoint.layout import Block, lay_out
from gangline_worker.checkpoint.loader import Checkpoint
from gangline_worker.checkpoint.local import holdings
from gangline_worker.checkpoint.saver import AsyncSaver, SaveResult, SaverIdentity

State = dict[str, torch.Tensor]
LARGE = SMALL_BYTES // 4 * 3  # elements of float32: a tensor with a chunk of its own
SEQUENCES = int(os.environ.get("GANGLINE_SAVE_SEQUENCES", "8"))
NAMES = ("frozen", "bias", "scale", "trained", "n")


def state() -> State:
    made = torch.Generator().manual_seed(3)
    return {
        "bias": torch.randn(5, generator=made),  # and padding, which moves write over
        "frozen": torch.randn(LARGE, generator=made),
        "scale": torch.randn(7, generator=made),
        "trained": torch.randn(LARGE, generator=made),
        "n": torch.tensor(1.0),
    }


class Rank:
    """One rank that saves below `folder`; `commits` is what its agent reports."""

    def __init__(self, folder: Path, full_every: int = 4, rank: int = 0, world: int = 1) -> None:
        self.folder = folder / "attempt-0001"
        self.said: list[ShardReady] = []
        self.commits: int | None = None
        identity = SaverIdentity(folder, "job-1", 1, rank, world, full_every)
        self.saver = AsyncSaver(identity, self.said.append, lambda: self.commits)

    def save(self, step: int, tensors: State) -> SaveResult:
        self.saver.begin(step, tensors, {}, {})
        self.saver.wait()
        [result] = self.saver.results()
        return result

    def saved(self, step: int, tensors: State) -> int:
        """Save, commit, tell the rank; how many bytes were written."""
        result = self.save(step, tensors)
        assert result.error is None
        self.commit(step)
        self.commits = step
        return result.written_bytes

    def commit(self, step: int) -> None:
        commit(self.folder / step_folder(step), 1)

    def manifest(self, step: int) -> RankManifest:
        return manifest_of(self.folder / step_folder(step))

    def path(self, step: int) -> Path:
        return self.folder / step_folder(step) / shard_name(0)


def manifest_of(folder: Path, rank: int = 0) -> RankManifest:
    return RankManifest.decode((folder / manifest_name(rank)).read_bytes())


def commit(folder: Path, world: int) -> None:
    """What the checkpoint service does."""
    manifests = [manifest_of(folder, rank) for rank in range(world)]
    referred = [
        manifest_of(folder.parent / step_folder(step), found.rank).shard.model_copy(
            update={"key": f"teams/t/a/{step_folder(step)}/{shard_name(found.rank)}"}
        )
        for found in manifests
        for step in found.refers
    ]
    raw = [(folder / manifest_name(rank)).read_bytes() for rank in range(world)]
    record = CommitRecord(
        format=2 if referred else 1,
        job_id="job-1",
        attempt=1,
        step=manifests[0].step,
        world_size=world,
        manifests=tuple(
            ObjectDigest(key=manifest_name(rank), size_bytes=len(data), xxh3=digest_bytes(data))
            for rank, data in enumerate(raw)
        ),
        shards=tuple(found.shard for found in manifests),
        referred=tuple(referred) or None,
        committed_at=datetime(2026, 11, 1, tzinfo=UTC),
    )
    (folder / "COMMIT.json").write_bytes(record.encode())


def loaded(folder: Path, like: State) -> State:
    found = {name: torch.full_like(tensor, 9) for name, tensor in like.items()}
    Checkpoint(folder).fill(holdings(found, 0, 1))
    return found


def equal(one: State, other: State) -> bool:
    return all(torch.equal(one[name], tensor) for name, tensor in other.items())


SIZES = st.lists(
    st.one_of(st.integers(1, 5000), st.integers(SMALL_BYTES - 70, 3 * CHUNK_BYTES)), max_size=12
)


@given(SIZES)
def test_chunks_are_all_bytes_once_and_large_tensors_have_their_own(sizes: list[int]) -> None:
    blocks = [Block(f"t{i}", "uint8", (size,), (0,), (size,)) for i, size in enumerate(sizes)]
    slices, total = lay_out(blocks)
    spans = cut(slices, total)
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])][: len(spans)]
    assert (spans[-1][1] if spans else 0) == total
    assert all(0 < end - start <= CHUNK_BYTES + SMALL_BYTES for start, end in spans)
    for piece in slices:
        if piece.size_bytes >= SMALL_BYTES:
            assert _tensors_in(_chunk_at(spans, piece.byte_offset), slices) == {piece.name}
    assert sum(end - start for start, end in padding(slices)) == total - sum(sizes)


def _chunk_at(spans: tuple[tuple[int, int], ...], offset: int) -> tuple[int, int]:
    return next(span for span in spans if span[0] <= offset < span[1])


def _tensors_in(span: tuple[int, int], slices: tuple[TensorSlice, ...]) -> set[str]:
    return {
        piece.name
        for piece in slices
        if piece.byte_offset < span[1] and span[0] < piece.byte_offset + piece.size_bytes
    }


def test_what_is_frozen_is_written_once(tmp_path: Path) -> None:
    rank, tensors = Rank(tmp_path), state()
    whole = rank.saved(10, tensors)
    assert whole == rank.path(10).stat().st_size
    for step in (20, 30):
        tensors["trained"] += 1
        written = rank.saved(step, tensors)
        assert written == rank.path(step).stat().st_size == LARGE * 4
        assert rank.manifest(step).refers == (10,)
        assert rank.said[-1].refers == (10,)
        assert equal(loaded(rank.path(step).parent, tensors), tensors)
    assert rank.saved(40, tensors) == 0, "nothing changed"
    assert rank.manifest(40).refers == (10, 30), "where each was first written, and no chain"
    assert rank.saved(50, tensors) == whole, "each fourth is whole"
    assert rank.manifest(50).refers == ()
    tensors["bias"] += 1
    assert 0 < rank.saved(60, tensors) < 1000
    assert equal(loaded(rank.path(60).parent, tensors), tensors)


def test_a_whole_save_is_written_where_little_is_unchanged(tmp_path: Path) -> None:
    rank, tensors = Rank(tmp_path), state()
    whole = rank.saved(10, tensors)
    tensors["frozen"] += 1
    tensors["trained"] += 1
    assert rank.saved(20, tensors) == whole
    assert rank.manifest(20).refers == ()


@pytest.mark.parametrize("told", [None, 5, 30])
def test_only_what_is_known_to_be_committed_is_referred_to(tmp_path: Path, told: int | None):
    rank, tensors = Rank(tmp_path), state()
    whole = rank.save(10, tensors).written_bytes
    rank.commits = told
    assert rank.save(20, tensors).written_bytes == whole
    assert rank.manifest(20).refers == ()


def test_without_the_wish_saves_are_as_they_were(tmp_path: Path) -> None:
    rank, tensors = Rank(tmp_path, full_every=1), state()
    whole = rank.saved(10, tensors)
    assert rank.saved(20, tensors) == whole
    manifest = rank.manifest(20)
    assert (manifest.format, manifest.chunks) == (1, None)
    assert b"chunks" not in (rank.path(20).with_suffix(".json")).read_bytes()


def test_a_step_is_not_written_over(tmp_path: Path) -> None:
    rank, tensors = Rank(tmp_path), state()
    rank.saved(10, tensors)
    tensors["bias"] += 1
    rank.saved(20, tensors)
    before = rank.path(20).read_bytes()
    assert rank.save(20, tensors).error is None
    tensors["bias"] += 1
    assert "saved before" in (rank.save(20, tensors).error or "")
    assert rank.path(20).read_bytes() == before
    assert [message.step for message in rank.said] == [10, 20]


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[LARGE * 2] ^= 1
    path.write_bytes(data)


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [_flip, _shorten, Path.unlink])
@pytest.mark.parametrize("step", [10, 20])
def test_damage_to_any_file_that_holds_its_chunks_is_found_and_named(
    tmp_path: Path, damage: Callable[[Path], None], step: int
) -> None:
    rank, tensors = Rank(tmp_path), state()
    rank.saved(10, tensors)
    tensors["trained"] += 1
    rank.saved(20, tensors)
    sound = rank.path(step).read_bytes()
    damage(rank.path(step))
    with pytest.raises(CorruptCheckpoint) as found:
        loaded(rank.path(20).parent, tensors)
    assert found.value.path == rank.path(step)

    def repaired(damage: CorruptCheckpoint) -> bool:
        damage.path.write_bytes(sound)
        return True

    filled = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    Checkpoint(rank.path(20).parent, repaired).fill(holdings(filled, 0, 1))
    assert equal(filled, tensors)


def test_a_file_that_the_commit_record_does_not_name_is_not_read(tmp_path: Path) -> None:
    rank, tensors = Rank(tmp_path), state()
    rank.saved(10, tensors)
    rank.saved(20, tensors)
    path = rank.path(20).with_name("COMMIT.json")
    record = CommitRecord.decode(path.read_bytes())
    path.write_bytes(record.model_copy(update={"referred": None}).encode())
    with pytest.raises(CorruptCheckpoint, match=r"does not name step-0000000010/rank-00000\.bin"):
        loaded(path.parent, tensors)


def test_a_rank_that_needs_little_reads_and_verifies_that_alone(tmp_path: Path) -> None:
    rank, tensors = Rank(tmp_path), state()
    rank.saved(10, tensors)
    tensors["trained"] += 1
    rank.saved(20, tensors)
    rank.path(10).unlink()
    assert equal(loaded(rank.path(20).parent, {"trained": tensors["trained"]}), {
        "trained": tensors["trained"]
    })  # fmt: skip


def test_replicas_each_refer_to_their_own_files(tmp_path: Path) -> None:
    ranks = [Rank(tmp_path, rank=rank, world=2) for rank in (0, 1)]
    tensors = state()
    for step in (10, 20, 30):
        tensors["trained"] += 1
        for rank in ranks:
            assert rank.save(step, tensors).error is None
            rank.commits = step
        commit(ranks[0].folder / step_folder(step), 2)
    folder = ranks[0].folder / step_folder(30)
    assert [manifest_of(folder, rank).refers for rank in (0, 1)] == [(10,), (10,)]
    for rank in range(3):  # at another world size
        found = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        Checkpoint(folder, rank=rank, world_size=3).fill(holdings(found, rank, 3))
        assert equal(found, tensors)


SAVES = st.lists(
    st.tuples(
        st.sets(st.sampled_from(NAMES)),  # what changes before it
        st.integers(0, 3),  # the rank is informed of the commit so many saves before; 3: of none
        st.booleans(),  # whether the state is of other Python objects from here on
    ),
    min_size=1,
    max_size=9,
)


@given(SAVES, st.integers(2, 5))
@settings(max_examples=SEQUENCES, deadline=None)
def test_any_sequence_of_changes_loads_bit_for_bit(
    saves: list[tuple[set[str], int, bool]], full_every: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rank, tensors = Rank(Path(folder), full_every), state()
        saved: list[State] = []
        for step, (changed, behind, others) in enumerate(saves):
            for name in changed:
                tensors[name] += 1
            if others:
                tensors = {name: tensor.clone() for name, tensor in tensors.items()}
            told = step - 1 - behind
            rank.commits = told if behind < 3 and told >= 0 else None
            assert rank.save(step, tensors).error is None
            rank.commit(step)
            saved.append({name: tensor.clone() for name, tensor in tensors.items()})
        written = {step: digest_file(rank.path(step)) for step in range(len(saves))}
        for step, expected in enumerate(saved):
            manifest = rank.manifest(step)
            assert manifest.shard.xxh3 == written[step]
            for chunk in manifest.chunks or ():
                assert chunk in (rank.manifest(chunk.step).chunks or ()), "never a chain"
            assert equal(loaded(rank.path(step).parent, expected), expected)
