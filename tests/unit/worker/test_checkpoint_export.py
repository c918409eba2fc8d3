"""Weights out of a checkpoint as safetensors and back: bit for bit, or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from gangline_schemas.events.workers import ObjectDigest
from gangline_storage import LocalStore, digest_bytes
from gangline_worker.checkpoint.commit import commit_local
from gangline_worker.checkpoint.export import INDEX_FILE, bring, export_weights, load_weights, main
from gangline_worker.checkpoint.files import CorruptCheckpoint
from gangline_worker.checkpoint.loader import Checkpoint, WrongCheckpoint
from gangline_worker.checkpoint.local import holdings
from gangline_worker.checkpoint.saver import AsyncSaver, SaverIdentity

MADE = torch.Generator().manual_seed(3)
WEIGHTS = {
    "embedding.weight": torch.randn(16, 8, generator=MADE),
    "head.weight": torch.randn(8, 16, generator=MADE).to(torch.bfloat16),
    "norm.scale": torch.randn(8, generator=MADE),
    "steps": torch.tensor(7),
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Weights and one moment, saved by three ranks."""
    tensors = {f"model.{name}": tensor for name, tensor in WEIGHTS.items()}
    tensors["optimizer.norm.scale.exp_avg"] = torch.ones(8)
    for rank in range(3):
        saver = AsyncSaver(SaverIdentity(tmp_path / "saved", "job-1", 1, rank, 3), lambda _: None)
        saver.begin(20, tensors, {}, {})
        saver.wait()
    folder = tmp_path / "saved" / "attempt-0001" / "step-0000000020"
    assert commit_local(folder, 3)
    return Checkpoint(folder)


def same(found: dict[str, torch.Tensor]) -> bool:
    return found.keys() == WEIGHTS.keys() and all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
        for name, tensor in WEIGHTS.items()
    )


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(("file_bytes", "files"), [(10**9, 1), (600, 2), (1, 4)])
def test_weights_go_out_and_come_back(
    checkpoint: Checkpoint, tmp_path: Path, file_bytes: int, files: int
) -> None:
    out = tmp_path / "out"
    export_weights(checkpoint, out, file_bytes=file_bytes)
    index = json.loads((out / INDEX_FILE).read_text())
    assert len(set(index["weight_map"].values())) == files
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in WEIGHTS.values())
    name = "model.safetensors" if files == 1 else f"model-00001-of-{files:05d}.safetensors"
    assert (out / name).exists()
    theirs: dict[str, torch.Tensor] = {}
    for file in set(index["weight_map"].values()):
        theirs |= load_file(out / file)
    assert same(theirs), "as any other program reads it"
    filled = {name: torch.zeros_like(tensor) for name, tensor in WEIGHTS.items()}
    load_weights(out, filled)
    assert same(filled)


def test_a_damaged_checkpoint_is_not_exported(checkpoint: Checkpoint, tmp_path: Path) -> None:
    flip(checkpoint.folder / "rank-00000.bin")
    with pytest.raises(CorruptCheckpoint, match="rank-00000"):
        export_weights(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out" / INDEX_FILE).exists()


@pytest.mark.parametrize("how", ["flip", "truncate", "missing", "index"])
def test_damaged_weights_are_refused(checkpoint: Checkpoint, tmp_path: Path, how: str) -> None:
    out = tmp_path / "out"
    export_weights(checkpoint, out)
    victim = out / (INDEX_FILE if how == "index" else "model.safetensors")
    if how == "flip":
        flip(victim)
    elif how == "missing":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(CorruptCheckpoint) as loaded:
        load_weights(out, {"steps": torch.tensor(0)})
    assert loaded.value.path == victim


def test_weights_of_others_are_read_without_our_digests(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    filled = {"head.weight": torch.zeros(8, 16)}
    for source in (tmp_path, tmp_path / "model.safetensors"):
        load_weights(source, filled)
        assert torch.equal(filled["head.weight"], WEIGHTS["head.weight"].float())
    (tmp_path / "model.safetensors").write_bytes(b"no safetensors")
    with pytest.raises(CorruptCheckpoint, match="cannot be read"):
        load_weights(tmp_path, filled)


def test_another_model_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_weights(checkpoint, out)
    for wanted, reason in (
        ({"other": torch.zeros(2)}, "no tensor other"),
        ({"norm.scale": torch.zeros(9)}, r"shape \(8,\)"),
        ({"norm.scale": torch.zeros(8, dtype=torch.int64)}, "float32"),
    ):
        with pytest.raises(WrongCheckpoint, match=reason):
            load_weights(out, wanted)
    with pytest.raises(WrongCheckpoint, match="no tensor below 'ema\\.'"):
        export_weights(checkpoint, tmp_path / "ema", prefix="ema.")
    with pytest.raises(FileExistsError, match="holds model"):
        export_weights(checkpoint, out)


@pytest.mark.parametrize("index", [False, True])
def test_tied_weights_need_one_name_in_the_files(tmp_path: Path, index: bool) -> None:
    """Hugging Face's files leave the others out; memory that is not shared must be there."""
    file = tmp_path / "model.safetensors"
    save_file({"embedding.weight": torch.ones(4, 2)}, file)
    if index:
        weight_map = {"embedding.weight": file.name}
        about = {"metadata": {"total_size": 32}, "weight_map": weight_map}
        (tmp_path / INDEX_FILE).write_text(json.dumps(about))
    embedding, head = torch.nn.Embedding(4, 2), torch.nn.Linear(2, 4, bias=False)
    apart = {"embedding.weight": embedding.weight, "head.weight": head.weight}
    with pytest.raises(WrongCheckpoint, match=r"no tensor head\.weight"):
        load_weights(tmp_path, apart)
    head.weight = embedding.weight
    load_weights(tmp_path, {"head.weight": head.weight, "embedding.weight": embedding.weight})
    assert torch.equal(head.weight, torch.ones(4, 2))
    rows = {"embedding.weight": embedding.weight, "first": embedding.weight[:1]}
    with pytest.raises(WrongCheckpoint, match="no tensor first"):
        load_weights(tmp_path, rows)


def test_an_index_cannot_name_files_elsewhere(checkpoint: Checkpoint, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_weights(checkpoint, out)
    index = json.loads((out / INDEX_FILE).read_text())
    (out / INDEX_FILE).write_text(
        json.dumps(index | {"weight_map": {"steps": "../out/model.safetensors"}})
    )
    with pytest.raises(CorruptCheckpoint, match="lies elsewhere"):
        load_weights(out, {"steps": torch.tensor(0)})


def test_the_command_exports_and_says_what_is_wrong(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(checkpoint.folder), str(tmp_path / "out")]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["tensors"] == len(WEIGHTS)
    assert main(arguments) == 1
    assert "name an empty folder" in capsys.readouterr().err


PLACE = "teams/nlp/checkpoints/job-1/attempt-0001/step-0000000020"


@pytest.fixture
def stored(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    """The folder of a store that holds the checkpoint and an earlier file, which it refers to."""
    folder = tmp_path / "store" / PLACE
    earlier = folder.with_name("step-0000000010") / "rank-00000.bin"
    shutil.copytree(checkpoint.folder, folder)
    earlier.parent.mkdir()
    earlier.write_bytes(b"chunks")
    record = checkpoint.record
    refers = ObjectDigest(
        key=f"{Path(PLACE).parent}/step-0000000010/{earlier.name}",
        size_bytes=6,
        xxh3=digest_bytes(b"chunks"),
    )
    placed = {
        part: tuple(
            digest.model_copy(update={"key": f"{PLACE}/{digest.key}"})
            for digest in getattr(record, part)
        )
        for part in ("manifests", "shards")
    }
    changed = record.model_copy(update={**placed, "format": 2, "referred": (refers,)})
    (folder / "COMMIT.json").write_bytes(changed.encode())
    return folder


def test_what_is_in_the_store_is_exported_from_there(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "out"
    arguments = [PLACE, str(out), "--store", (tmp_path / "store").as_uri()]
    assert main(arguments) == 0
    assert same(load_file(out / "model.safetensors"))
    assert [path.name for path in out.parent.iterdir()] == ["out"], "the copies are gone"
    brought = bring(LocalStore(tmp_path / "store"), PLACE, tmp_path / "by-hand")
    assert (brought.folder.with_name("step-0000000010") / "rank-00000.bin").exists()

    (stored / "rank-00001.bin").unlink()
    assert main([PLACE, str(tmp_path / "other"), *arguments[2:]]) == 1
    assert f"the store has no {PLACE}/rank-00001.bin" in capsys.readouterr().err
    assert main([PLACE[:-2] + "30", str(tmp_path / "other"), *arguments[2:]]) == 1
    assert "step-0000000030/COMMIT.json" in capsys.readouterr().err


def test_a_commit_record_brings_nothing_from_elsewhere(stored: Path, tmp_path: Path) -> None:
    record = stored / "COMMIT.json"
    record.write_text(record.read_text().replace("nlp/checkpoints/job-1", "cv/checkpoints/job-1"))
    with pytest.raises(CorruptCheckpoint, match="lies elsewhere"):
        bring(LocalStore(tmp_path / "store"), PLACE, tmp_path / "by-hand")


@pytest.fixture(params=range(2))
def mesh(request: pytest.FixtureRequest) -> Iterator[DeviceMesh]:
    """Two ranks, seen from each of them."""
    dist.init_process_group("fake", rank=request.param, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


@pytest.mark.parametrize("dim", [0, 1])
def test_a_sharded_model_takes_its_own_part(
    checkpoint: Checkpoint, tmp_path: Path, mesh: DeviceMesh, dim: int
) -> None:
    out = tmp_path / "out"
    export_weights(checkpoint, out, file_bytes=1)
    rank, whole = dist.get_rank(), WEIGHTS["embedding.weight"]
    mine = whole.chunk(2, dim)[rank]

    def empty() -> DTensor:
        return DTensor.from_local(torch.zeros(mine.shape), mesh, [Shard(dim)], run_check=False)

    from_file, from_checkpoint = empty(), empty()
    load_weights(out, {"embedding.weight": from_file})
    checkpoint.fill(holdings({"model.embedding.weight": from_checkpoint}, rank, 2))
    assert torch.equal(from_file.to_local(), mine)
    assert torch.equal(from_checkpoint.to_local(), mine), "three ranks saved it, cut otherwise"
