"""What a rank reads of a checkpoint: whose files, in what world, and from which copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from gangline_schemas.checkpoint import EACH_COPY_BYTES
from gangline_schemas.rank_protocol import ShardReady
from gangline_worker.checkpoint.commit import commit_local, committed
from gangline_worker.checkpoint.files import CorruptCheckpoint, read_verified
from gangline_worker.checkpoint.loader import Checkpoint, WrongCheckpoint
from gangline_worker.checkpoint.local import holdings
from saving_scene import saved_alone, saver_of, state


@pytest.mark.parametrize(("saved", "loaded"), [(1, 1), (3, 1), (2, 5)])
def test_what_replicas_saved_any_rank_can_load(tmp_path: Path, saved: int, loaded: int) -> None:
    announced: list[ShardReady] = []
    for rank in range(saved):
        saver = saver_of(tmp_path, announced, rank, saved)
        saver.begin(20, state(), {}, {"loss": 1.5})
        saver.wait()
        assert saver.results()[0].error is None
    folder = tmp_path / "attempt-0001" / "step-0000000020"
    assert commit_local(folder, saved)
    assert committed(tmp_path) == [folder]
    for message in announced:
        for digest in (message.shard, message.manifest):
            read_verified(tmp_path / digest.key, digest)
    for rank in range(loaded):
        filled = {name: torch.zeros_like(tensor) for name, tensor in state().items()}
        Checkpoint(folder).fill(holdings(filled, rank, loaded), rank)
        assert all(torch.equal(filled[name], tensor) for name, tensor in state().items())


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_needs_its_own_files_alone_where_all_that_it_held_is_in_them(
    tmp_path: Path, rank: int
) -> None:
    """Else each node of a gang would get every other one's files to go on."""
    for saved in range(3):
        saver = saver_of(tmp_path, [], saved, 3)
        saver.begin(20, state() | {"mine": torch.tensor([float(saved)])}, {"rank": saved}, {})
        saver.wait()
    folder = tmp_path / "attempt-0001" / "step-0000000020"
    assert commit_local(folder, 3)
    for other in {0, 1, 2} - {rank}:
        for path in folder.glob(f"rank-0000{other}.*"):
            path.unlink()
    checkpoint = Checkpoint(folder)
    wanted = state() | {"mine": torch.zeros(1)}
    filled = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    checkpoint.fill(holdings(filled, rank, 3), rank)
    assert all(torch.equal(filled[name], tensor) for name, tensor in state().items())
    assert filled["mine"].item() == rank
    manifest = checkpoint.manifest_for(rank)
    assert (manifest.alone, manifest.state) == (True, {"rank": rank})
    assert checkpoint.tensors({"a"}, rank).keys() == {"a"}


def test_what_is_cut_among_ranks_is_read_from_all(tmp_path: Path) -> None:
    large = torch.randn(EACH_COPY_BYTES // 4 + 1)
    for rank in range(3):
        saver = saver_of(tmp_path, [], rank, 3)
        saver.begin(20, state() | {"large": large}, {}, {})
        saver.wait()
    folder = tmp_path / "attempt-0001" / "step-0000000020"
    assert commit_local(folder, 3)
    checkpoint = Checkpoint(folder)
    filled = {"large": torch.zeros_like(large)}
    checkpoint.fill(holdings(filled, 1, 3), 1)
    assert torch.equal(filled["large"], large)
    assert not any(manifest.alone for manifest in checkpoint.manifests)
    sizes = [digest.size_bytes for digest in checkpoint.record.shards]
    assert sum(sizes) < large.nbytes * 1.1


def test_another_model_is_refused(tmp_path: Path) -> None:
    folder = saved_alone(tmp_path)
    wider = {"a": torch.zeros(6, 3)}
    with pytest.raises(WrongCheckpoint, match=r"a is float32 \(5, 3\) in the checkpoint"):
        Checkpoint(folder).fill(holdings(wider, 0, 1), 0)
    with pytest.raises(WrongCheckpoint, match="0 of the 2 elements of other"):
        Checkpoint(folder).fill(holdings({"other": torch.zeros(2)}, 0, 1), 0)


def damage(path: Path, how: str) -> None:
    """Flip a bit of a file, cut its last byte off, or delete it."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(raw if how == "flip" else raw[:-1])


@pytest.mark.parametrize("how", ["flip", "truncate", "missing"])
@pytest.mark.parametrize("file", ["rank-00000.bin", "rank-00000.json", "COMMIT.json"])
def test_a_damaged_file_is_read_from_another_copy(tmp_path: Path, file: str, how: str) -> None:
    folder = saved_alone(tmp_path / "node")
    other = shutil.copytree(folder, tmp_path / "other")
    if file == "COMMIT.json" and how == "flip":
        (folder / file).write_bytes((folder / file).read_bytes().replace(b"{", b"[", 1))
    else:
        damage(folder / file, how)
    told: list[CorruptCheckpoint] = []

    def replace(found: CorruptCheckpoint) -> bool:
        told.append(found)
        shutil.copy(other / found.path.name, found.path)
        return True

    filled = {name: torch.zeros_like(tensor) for name, tensor in state().items()}
    Checkpoint(folder, replace).fill(holdings(filled, 0, 1), 0)
    assert all(torch.equal(filled[name], tensor) for name, tensor in state().items())
    assert [found.path.name for found in told] == [file], "each damage is told once"


def test_another_copy_that_is_damaged_too_is_refused(tmp_path: Path) -> None:
    folder = saved_alone(tmp_path)
    damage(folder / "rank-00000.bin", "flip")
    filled = {name: torch.zeros_like(tensor) for name, tensor in state().items()}
    for answer in (True, False):
        with pytest.raises(CorruptCheckpoint, match="xxh3"):
            Checkpoint(folder, lambda _, answer=answer: answer).fill(holdings(filled, 0, 1), 0)
