"""Model weights of a committed checkpoint as safetensors in Hugging Face's layout, and back.

`python -m gangline_worker.checkpoint.export CHECKPOINT OUTPUT` writes the tensors below `model.`,
whole and without that prefix, in order of their names. CHECKPOINT is a folder, or with
`--store URL` its place in that store, from where it is copied to a folder beside OUTPUT meanwhile.

```
model.safetensors                     or model-00001-of-00003.safetensors, ...
model.safetensors.index.json          which tensor lies in which file, and each file's xxh3-128
```
Every byte of the checkpoint is verified when it is read. The index is written last, so a folder
with an index is whole; its digests are checked when the weights are read back.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gangline_schemas.checkpoint import ITEM_BYTES, CommitRecord, TensorSlice
from gangline_storage import NotFound, ObjectStore, StoreError, open_store
from gangline_storage.digest import digest_file
from gangline_worker.checkpoint.files import CorruptCheckpoint, sync, write_synced
from gangline_worker.checkpoint.loader import COMMIT_FILE, Checkpoint, WrongCheckpoint
from gangline_worker.checkpoint.local import Held, fingerprint, holdings

WEIGHTS = "model"
PREFIX = "model."
INDEX_FILE = f"{WEIGHTS}.safetensors.index.json"
FILE_BYTES = 5_000_000_000  # as Hugging Face cuts them; an export holds one file in memory


class IndexMetadata(BaseModel):
    """The index's facts about the whole; only `total_size` (bytes of all tensors) is standard."""

    model_config = ConfigDict(extra="ignore")

    total_size: int
    xxh3_128: dict[str, str] = Field(default_factory=dict)


class Index(BaseModel):
    """`model.safetensors.index.json`."""

    model_config = ConfigDict(extra="ignore")

    metadata: IndexMetadata
    weight_map: dict[str, str]


def export_weights(
    checkpoint: Checkpoint, output: Path, *, prefix: str = PREFIX, file_bytes: int = FILE_BYTES
) -> Index:
    """Write the tensors below `prefix` into the folder `output`, which must hold none yet.

    Raises:
        CorruptCheckpoint: a file of the checkpoint is not what was committed.
        WrongCheckpoint: no tensor has that prefix.
        FileExistsError: weights lie in `output` already.
        OSError: it cannot be written.
    """
    output.mkdir(parents=True, exist_ok=True)
    if there := sorted(path.name for path in output.glob("*.safetensors*")):
        raise FileExistsError(f"{output} holds {there[0]} already; name an empty folder")
    found = {name: piece for name, piece in checkpoint.tensors().items() if name.startswith(prefix)}
    if not found:
        raise WrongCheckpoint(f"{checkpoint.folder} holds no tensor below {prefix!r}")
    groups = list(_grouped([found[name] for name in sorted(found)], file_bytes))
    weight_map: dict[str, str] = {}
    digests: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        several = f"-{number:05d}-of-{len(groups):05d}" if len(groups) > 1 else ""
        file = f"{WEIGHTS}{several}.safetensors"
        whole = checkpoint.read_whole(group)
        named = {name.removeprefix(prefix): tensor for name, tensor in whole.items()}
        about = {"format": "pt", "step": str(checkpoint.step), "job_id": checkpoint.record.job_id}
        save_file(named, output / file, metadata=about)
        sync(output / file)
        weight_map |= dict.fromkeys(named, file)
        digests[file] = digest_file(output / file)
    total = sum(_size_bytes(piece) for piece in found.values())
    index = Index(metadata=IndexMetadata(total_size=total, xxh3_128=digests), weight_map=weight_map)
    sync(output)
    write_synced(output / INDEX_FILE, memoryview(index.model_dump_json().encode()), INDEX_FILE)
    return index


def bring(store: ObjectStore, place: str, below: Path) -> Checkpoint:
    """Copy the checkpoint at `place`, `.../attempt-NNNN/step-NNNNNNNNNN`, to a folder in `below`.

    Files that it refers to are copied too. Bytes are verified when they are read, not here.

    Raises:
        CorruptCheckpoint: the commit record is missing, it cannot be understood or names what lies
            elsewhere, or an object is missing.
        StoreError, InvalidKey, OSError: the store does not give it, or the disk does not take it.
    """
    where = PurePosixPath(place.strip("/"))
    record = below / where.name / COMMIT_FILE
    _copy(store, where / COMMIT_FILE, record)
    try:
        found = CommitRecord.decode(record.read_bytes())
    except ValidationError as error:
        raise CorruptCheckpoint(record, "is no CommitRecord") from error
    for digest in (*found.manifests, *found.shards, *(found.referred or ())):
        key = PurePosixPath(digest.key)
        if key.parent.parent != where.parent or ".." in key.parts:
            raise CorruptCheckpoint(record, f"names {digest.key!r}, which lies elsewhere")
        _copy(store, key, below / key.parent.name / key.name)
    return Checkpoint(record.parent)


def _copy(store: ObjectStore, key: PurePosixPath, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        store.fetch(str(key), path)
    except NotFound:
        raise CorruptCheckpoint(path, f"the store has no {key}") from None


def load_weights(source: Path, into: Mapping[str, Tensor]) -> None:
    """Fill tensors by name from safetensors, each rank its own part of sharded ones (DTensor).

    `source` is a folder in Hugging Face's layout or one file. Files with a digest in the index are
    verified whole first. Floating point values are converted to the target's dtype. Of tensors that
    are the same memory (tied weights) the files may hold one alone.

    Raises:
        CorruptCheckpoint: a file is missing, not what the index says, or no safetensors.
        WrongCheckpoint: a tensor is missing or has another shape or kind of dtype.
    """
    index = None if source.is_file() else _read_index(source)
    only = source if source.is_file() else source / f"{WEIGHTS}.safetensors"
    held = _names_in(only) if index is None else index.weight_map.keys()
    names = _without_tied(into, held)
    files = {only: names} if index is None else _files_of(source, names, index)
    for file, there in files.items():
        wanted = holdings({name: into[name] for name in there}, 0, 1)
        try:
            with safe_open(file, framework="pt") as weights:
                _fill(file, weights, wanted)
        except (SafetensorError, OSError) as error:
            raise CorruptCheckpoint(file, f"cannot be read: {error}") from error


def _grouped(pieces: Iterable[TensorSlice], file_bytes: int) -> Iterator[list[TensorSlice]]:
    """Cut a sequence of tensors into files of up to `file_bytes`; a larger one lies alone."""
    group: list[TensorSlice] = []
    held = 0
    for piece in pieces:
        size = _size_bytes(piece)
        if group and held + size > file_bytes:
            yield group
            group, held = [], 0
        group.append(piece)
        held += size
    yield group


def _size_bytes(piece: TensorSlice) -> int:
    return math.prod(piece.global_shape) * ITEM_BYTES[piece.dtype]


def _names_in(file: Path) -> Collection[str]:
    try:
        with safe_open(file, framework="pt") as weights:
            return set(weights.keys())
    except (SafetensorError, OSError) as error:
        raise CorruptCheckpoint(file, f"cannot be read: {error}") from error


def _without_tied(into: Mapping[str, Tensor], held: Collection[str]) -> list[str]:
    """The names to read: all, except what is filled with a tensor of the same memory."""
    memory = {name: of for name, *of in fingerprint(into)}
    there = [memory[name] for name in into if name in held and into[name].numel()]
    return [name for name in into if name in held or memory[name] not in there]


def _files_of(source: Path, names: Iterable[str], index: Index) -> dict[Path, list[str]]:
    """Which tensors to take from which file, verified."""
    found: dict[str, list[str]] = {}
    for name in names:
        if name not in index.weight_map:
            raise WrongCheckpoint(f"{source / INDEX_FILE} names no tensor {name}")
        found.setdefault(index.weight_map[name], []).append(name)
    return {_verified(source, file, index): wanted for file, wanted in found.items()}


def _read_index(source: Path) -> Index | None:
    path = source / INDEX_FILE
    try:
        return Index.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise CorruptCheckpoint(path, "is no index of safetensors") from error


def _verified(source: Path, file: str, index: Index) -> Path:
    path = source / file
    if Path(file).name != file:
        raise CorruptCheckpoint(source / INDEX_FILE, f"names {file!r}, which lies elsewhere")
    expected = index.metadata.xxh3_128.get(file)
    try:
        if expected is not None and (found := digest_file(path)) != expected:
            raise CorruptCheckpoint(path, f"its xxh3-128 is {found}, {expected} was written")
    except OSError as error:
        raise CorruptCheckpoint(path, f"cannot be read: {error.strerror or error}") from error
    return path


@torch.no_grad()
def _fill(file: Path, weights: Any, wanted: Mapping[str, Held]) -> None:
    held = set(weights.keys())
    for name, target in wanted.items():
        block = target.block
        if name not in held:
            raise WrongCheckpoint(f"{file} holds no tensor {name}")
        lies = weights.get_slice(name)
        if tuple(lies.get_shape()) != block.global_shape:
            raise WrongCheckpoint(
                f"{name} has shape {tuple(lies.get_shape())} in {file} and {block.global_shape} "
                "here; it is of another model"
            )
        cut = tuple(
            slice(start, start + count)
            for start, count in zip(block.start, block.shape, strict=True)
        )
        part = lies[cut] if cut else weights.get_tensor(name)
        if part.dtype != target.data.dtype and not (
            part.is_floating_point() and target.data.is_floating_point()
        ):
            raise WrongCheckpoint(f"{name} is {part.dtype} in {file} and {target.data.dtype} here")
        target.data.copy_(part)


def _export(options: argparse.Namespace) -> Index:
    output: Path = options.output

    def export(checkpoint: Checkpoint) -> Index:
        size = int(options.file_gb * 1e9)
        return export_weights(checkpoint, output, prefix=options.prefix, file_bytes=size)

    if options.store is None:
        return export(Checkpoint(Path(options.checkpoint)))
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".export-") as folder:
        return export(bring(open_store(options.store), options.checkpoint, Path(folder)))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gangline_worker.checkpoint.export")
    parser.add_argument("checkpoint", help="of a committed one: its folder, or place in the store")
    parser.add_argument("output", type=Path, help="folder for the weights; made if it is not there")
    parser.add_argument("--store", metavar="URL", help="file:///path or s3://bucket?endpoint=...")
    parser.add_argument("--prefix", default=PREFIX, help="of the tensors to take, and to cut off")
    parser.add_argument("--file-gb", type=float, default=FILE_BYTES / 1e9, help="size of a file")
    options = parser.parse_args(arguments)
    try:
        index = _export(options)
    except (CorruptCheckpoint, WrongCheckpoint, StoreError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    result = {
        "tensors": len(index.weight_map),
        "bytes": index.metadata.total_size,
        "files": sorted(index.metadata.xxh3_128),
    }
    sys.stdout.write(f"{json.dumps(result)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
