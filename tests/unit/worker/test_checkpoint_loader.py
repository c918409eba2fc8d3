"""What a rank reads of a checkpoint: whose files, in what world, and from which copy."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from gangline_schemas.checkpoint import EACH_COPY_BYTES
from gangline_schemas.rank_protocol import ShardReady
from gangline_worker.checkpoint.commit import commit_local, committed
from gangline_worker.checkpoint.files import CorruptCheckpoint, read_verified
from gangline_worker.checkpoint.loader import Checkpoint, WrongCheckpoint
from gangline_worker.checkpoint.local import holdings, own_prefix
from gangline_worker.checkpoint.nearest import holders, nearest, whose
from support.builders.savers import saved_alone, saver_of, state

R = TypeVar("R", torch.Tensor, range)


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
        checkpoint = Checkpoint(folder, rank=rank, world_size=loaded)
        checkpoint.fill(holdings(filled, rank, loaded))
        assert all(torch.equal(filled[name], tensor) for name, tensor in state().items())


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_needs_its_own_files_alone_where_all_that_it_held_is_in_them(
    tmp_path: Path, rank: int
) -> None:
    """Else each node of a gang would get every other one's files to continue."""
    for saved in range(3):
        saver = saver_of(tmp_path, [], saved, 3)
        mine = {f"{own_prefix(saved)}.mine": torch.tensor([float(saved)])}
        saver.begin(20, state() | mine, {"rank": saved}, {})
        saver.wait()
    folder = tmp_path / "attempt-0001" / "step-0000000020"
    assert commit_local(folder, 3)
    for other in {0, 1, 2} - {rank}:
        for path in folder.glob(f"rank-0000{other}.*"):
            path.unlink()
    checkpoint = Checkpoint(folder, rank=rank, world_size=3)
    own = f"{own_prefix(rank)}.mine"
    wanted = state() | {own: torch.zeros(1)}
    filled = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    checkpoint.fill(holdings(filled, rank, 3))
    assert all(torch.equal(filled[name], tensor) for name, tensor in state().items())
    assert filled[own].item() == rank
    manifest = checkpoint.own_manifest
    assert (manifest.alone, manifest.state) == (True, {"rank": rank})
    assert checkpoint.tensors({"a"}).keys() == {"a"}


def test_what_is_cut_among_ranks_is_read_from_all(tmp_path: Path) -> None:
    large = torch.randn(EACH_COPY_BYTES // 4 + 1)
    for rank in range(3):
        saver = saver_of(tmp_path, [], rank, 3)
        saver.begin(20, state() | {"large": large}, {}, {})
        saver.wait()
    folder = tmp_path / "attempt-0001" / "step-0000000020"
    assert commit_local(folder, 3)
    checkpoint = Checkpoint(folder, rank=1, world_size=3)
    filled = {"large": torch.zeros_like(large)}
    checkpoint.fill(holdings(filled, 1, 3))
    assert torch.equal(filled["large"], large)
    assert not any(manifest.alone for manifest in checkpoint.manifests)
    sizes = [digest.size_bytes for digest in checkpoint.record.shards]
    assert sum(sizes) < large.nbytes * 1.1


def cut(rank: int, ranks: int, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each tensor as FSDP has it on this rank, in the process group that there is."""
    mesh = init_device_mesh("cpu", (ranks,))
    return {
        name: DTensor.from_local(
            _rows(tensor, rank, ranks).clone(), mesh, [Shard(0)], run_check=False,
            shape=tensor.shape, stride=tensor.stride(),
        )
        for name, tensor in tensors.items()
    }  # fmt: skip


def _rows(tensor: R, rank: int, ranks: int) -> R:
    """Those that a rank holds, also of a range of them."""
    each = -(-len(tensor) // ranks)
    return tensor[rank * each : (rank + 1) * each]


@contextlib.contextmanager
def as_rank(rank: int, ranks: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("ranks", [6, 8, 11, 16])
def test_at_another_size_a_rank_reads_the_few_files_that_hold_its_rows(
    tmp_path: Path, ranks: int
) -> None:
    """Nothing is there at first, and what is asked for comes from elsewhere."""
    made = torch.Generator().manual_seed(7)
    whole = {f"t{rows}": torch.randn(rows, 3, generator=made) for rows in (96, 50, 8, 3)}
    elsewhere, here = tmp_path / "elsewhere", tmp_path / "here"
    for saved in range(8):
        with as_rank(saved, 8):
            saver = saver_of(elsewhere, [], saved, 8)
            saver.begin(20, cut(saved, 8, whole), {"rank": saved}, {})
            saver.wait()
            assert saver.results()[0].error is None
    stored = elsewhere / "attempt-0001" / "step-0000000020"
    assert commit_local(stored, 8)
    for rank in range(ranks):
        asked: list[str] = []

        def bring(found: CorruptCheckpoint, asked: list[str] = asked) -> bool:
            asked.append(found.path.name)
            shutil.copy(stored / found.path.name, found.path)
            return True

        shutil.rmtree(here, ignore_errors=True)
        here.mkdir()
        with as_rank(rank, ranks):
            checkpoint = Checkpoint(here, bring, rank=rank, world_size=ranks)
            filled = cut(rank, ranks, {name: torch.zeros_like(t) for name, t in whole.items()})
            checkpoint.fill(holdings(filled, rank, ranks))
            for name, tensor in filled.items():
                assert torch.equal(tensor.to_local(), _rows(whole[name], rank, ranks)), name
        rows = {name: range(len(tensor)) for name, tensor in whole.items()}
        needed = {
            f"rank-{saved:05d}.bin"
            for saved in range(8)
            for held in rows.values()
            if {*_rows(held, rank, ranks)} & {*_rows(held, saved, 8)}
        }
        manifests = {name.replace(".bin", ".json") for name in needed}
        assert len(asked) == len(set(asked)), "nothing is brought twice"
        assert set(asked) == needed | manifests | {"COMMIT.json"}, f"rank {rank}"


def test_where_ranks_have_few_rows_they_may_have_lain_with_quite_another_rank() -> None:
    assert holders(range(2500, 2505), 4096, 1024) == range(625, 627)  # of 1,016: rank 500
    assert holders(range(4096, 4096), 4096, 1024) == range(0)
    assert holders(range(3), 3, 8) == range(3)


def test_all_that_saved_are_looked_into_the_likely_ones_first() -> None:
    assert nearest(500, 1016, 1024, {625, 626})[:3] == [625, 626, 503]
    assert nearest(2, 4, 4, {1}) == [2, 1, 3, 0]
    assert nearest(0, 1, 4) == [0, 1, 2, 3]
    assert nearest(2, 4, 4) == [2, 1, 3, 0]
    assert nearest(1, 3, 4) == [1, 2, 0, 3]
    assert nearest(900, 1000, 1024)[:4] == [921, 922, 920, 923]
    assert nearest(6, 7, 2) == [1, 0]
    assert whose(range(8, 16), 1016, 1024) == range(8, 17)
    assert whose(range(4), 8, 1) == range(1)


def test_another_model_is_refused(tmp_path: Path) -> None:
    folder = saved_alone(tmp_path)
    wider = {"a": torch.zeros(6, 3)}
    with pytest.raises(WrongCheckpoint, match=r"a is float32 \(5, 3\) in the checkpoint"):
        Checkpoint(folder).fill(holdings(wider, 0, 1))
    with pytest.raises(WrongCheckpoint, match="0 of the 2 elements of other"):
        Checkpoint(folder).fill(holdings({"other": torch.zeros(2)}, 0, 1))


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
    Checkpoint(folder, replace).fill(holdings(filled, 0, 1))
    assert all(torch.equal(filled[name], tensor) for name, tensor in state().items())
    assert [found.path.name for found in told] == [file], "each damage is told once"


def test_another_copy_that_is_damaged_too_is_refused(tmp_path: Path) -> None:
    folder = saved_alone(tmp_path)
    damage(folder / "rank-00000.bin", "flip")
    filled = {name: torch.zeros_like(tensor) for name, tensor in state().items()}
    for answer in (True, False):
        with pytest.raises(CorruptCheckpoint, match="xxh3"):
            Checkpoint(folder, lambda _, answer=answer: answer).fill(holdings(filled, 0, 1))
