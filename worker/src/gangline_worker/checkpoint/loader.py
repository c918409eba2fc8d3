"""Reading a committed checkpoint, verified byte by byte, at any world size."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from pydantic import ValidationError
from torch import Tensor

from gangline_schemas.base import Model
from gangline_schemas.checkpoint import (
    CommitRecord,
    RankManifest,
    SliceKey,
    TensorSlice,
    shard_name,
    step_folder,
)
from gangline_schemas.events.workers import ObjectDigest
from gangline_worker.checkpoint.chunked import read_chunks
from gangline_worker.checkpoint.files import CorruptCheckpoint, read_pieces, read_verified
from gangline_worker.checkpoint.layout import Block, Overlap, overlap
from gangline_worker.checkpoint.local import Held, holdings
from gangline_worker.checkpoint.nearest import holders, nearest, resumes_from

COMMIT_FILE = "COMMIT.json"
_NO_NUMPY_DTYPE = {  # and one of the same size that is
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}

T = TypeVar("T", bound=Model)
R = TypeVar("R")


class WrongCheckpoint(ValueError):
    """A sound checkpoint that is not of this model; the message names the tensor."""


def no_repair(_damage: CorruptCheckpoint) -> bool:
    """No other copy exists."""
    return False


class Checkpoint:
    """One committed checkpoint in a local folder. Digests come from its commit record alone."""

    def __init__(
        self,
        folder: Path,
        repair: Callable[[CorruptCheckpoint], bool] = no_repair,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Read the commit record, as a rank of a gang of this size.

        `repair` gets a file that is missing or differs from its commit; when it gives True, a sound
        copy lies there and is read.

        Raises:
            CorruptCheckpoint: there is none, or it cannot be understood.
        """
        self.folder = folder
        self._repair = repair
        self._rank = rank
        self._world_size = world_size
        self._manifests: dict[int, RankManifest] = {}
        path = folder / COMMIT_FILE

        def read() -> CommitRecord:
            try:
                return _decode(CommitRecord, path, path.read_bytes())
            except OSError as error:
                reason = f"cannot be read: {error.strerror or error}"
                raise CorruptCheckpoint(path, reason) from error

        self.record = self._again(read)

    @property
    def step(self) -> int:
        """How many steps are in it."""
        return self.record.step

    @property
    def manifests(self) -> tuple[RankManifest, ...]:
        """All ranks' manifests, verified.

        Raises:
            CorruptCheckpoint: one is not what was committed.
        """
        return tuple(map(self._manifest, range(self.record.world_size)))

    @property
    def own_manifest(self) -> RankManifest:
        """The manifest whose state this rank resumes from: its own, or that of rank 0."""
        return self._manifest(resumes_from(self._rank, self.record.world_size))

    def tensors(self, names: Collection[str] | None = None) -> dict[str, TensorSlice]:
        """One slice of each tensor in it, or of those named: its dtype and whole shape, by name.

        The manifests are read, the nearest first, until all that are named are found.
        """
        found: dict[str, TensorSlice] = {}
        for index in self._in_order(()):
            if names is not None and found.keys() >= set(names):
                break
            pieces = self._manifest(index).tensors
            found |= {p.name: p for p in pieces if names is None or p.name in names}
        return found

    @torch.no_grad()
    def fill(self, wanted: Mapping[str, Held]) -> None:
        """Copy what each `Held` names into its data.

        Files are read until all is there, the likeliest first; files with none of it are not read.
        Bytes that lie in a file as in memory are read right into place. So after an error the data
        is undefined.

        Raises:
            CorruptCheckpoint: a file that was read is not what was committed.
            WrongCheckpoint: a tensor is missing or has another shape or dtype.
        """
        missing = {name: math.prod(target.block.shape) for name, target in wanted.items()}
        seen: set[SliceKey] = set()
        for index in self._in_order(target.block for target in wanted.values()):
            if not any(missing.values()):
                return
            manifest = self._manifest(index)
            found = [
                _Piece(piece, target, common)
                for piece in manifest.tensors
                if (target := wanted.get(piece.name)) is not None
                and _fits(piece, target)
                and missing[piece.name]
                and not (seen and piece.key in seen)
                and (common := overlap(piece, target.block)) is not None
            ]
            if not found:
                continue
            self._read_shard(manifest, self.record.shards[index], found)
            for piece in found:
                missing[piece.lies.name] -= piece.common.elements
            if any(missing.values()):
                seen.update(piece.lies.key for piece in found)
        for name, elements in missing.items():
            if elements:
                whole = math.prod(wanted[name].block.shape)
                raise WrongCheckpoint(
                    f"{self.folder} holds {whole - elements} of the {whole} elements of {name} "
                    "that this rank needs; it is of another model"
                )

    def read_whole(self, pieces: Iterable[TensorSlice]) -> dict[str, Tensor]:
        """The tensors of which these are slices, whole, in CPU memory. Raises as `fill` does."""
        whole = {
            piece.name: torch.empty(piece.global_shape, dtype=getattr(torch, piece.dtype))
            for piece in pieces
        }
        self.fill(holdings(whole, 0, 1))
        return whole

    def _again(self, read: Callable[[], R]) -> R:
        """The result of `read`, from another copy if the first is damaged and there is one."""
        try:
            return read()
        except CorruptCheckpoint as damage:
            if not self._repair(damage):
                raise
            return read()

    def _in_order(self, blocks: Iterable[Block]) -> list[int]:
        """The ranks whose files these are, first those of the blocks: mostly no others are read."""
        saved = self.record.world_size
        rows = {
            (block.start[0], block.shape[0], block.global_shape[0])
            for block in blocks
            if block.shape[:1] != block.global_shape[:1]
        }
        likely = {
            other
            for first, count, of in rows
            for other in holders(range(first, first + count), of, saved)
        }
        return nearest(self._rank, self._world_size, saved, likely)

    def _manifest(self, rank: int) -> RankManifest:
        if rank not in self._manifests:
            digest = self.record.manifests[rank]
            path = self._path(digest)
            raw = self._again(lambda: read_verified(path, digest))
            self._manifests[rank] = _decode(RankManifest, path, bytes(raw))
        return self._manifests[rank]

    def _read_shard(
        self, manifest: RankManifest, digest: ObjectDigest, pieces: list[_Piece]
    ) -> None:
        path, chunks = self._path(digest), manifest.chunks
        pieces.sort(key=attrgetter("lies.byte_offset"))
        for piece in pieces:
            if piece.lies.byte_offset + piece.lies.size_bytes > manifest.whole_bytes:
                raise CorruptCheckpoint(path, f"{piece.lies.name} lies beyond its end")
        if chunks is None:
            self._again(lambda: read_pieces(path, digest, _destinations(pieces)))
            return
        files = {self.step: (path, digest.size_bytes)}
        for step in manifest.refers:
            files[step] = self._referred(step, manifest.rank)
        self._again(lambda: read_chunks(chunks, files, _destinations(pieces)))

    def _referred(self, step: int, rank: int) -> tuple[Path, int]:
        """A rank's file of an earlier step of the attempt, beside this folder, and its size."""
        name = f"{step_folder(step)}/{shard_name(rank)}"
        for digest in self.record.referred or ():
            if digest.key.endswith(f"/{name}"):
                return self.folder.parent / name, digest.size_bytes
        raise CorruptCheckpoint(self.folder / COMMIT_FILE, f"does not name {name}")

    def _path(self, digest: ObjectDigest) -> Path:
        """Keys are those of the store; here the file's name alone counts."""
        return self.folder / Path(digest.key).name


class _Piece(NamedTuple):
    """A slice of a shard file, and what of it goes where."""

    lies: TensorSlice
    target: Held
    common: Overlap


def _destinations(pieces: Sequence[_Piece]) -> Iterator[tuple[int, memoryview]]:
    """Offset in the file and memory to read into, for each piece; then the piece is in place.

    Pieces that cannot be read in place (on a GPU, cut otherwise) are copied from one buffer.
    """
    direct = [_in_place(piece) for piece in pieces]
    others = [p.lies.size_bytes for p, view in zip(pieces, direct, strict=True) if view is None]
    buffer = torch.empty(max(others, default=0), dtype=torch.uint8)
    for piece, view in zip(pieces, direct, strict=True):
        if view is not None:
            yield piece.lies.byte_offset, view
            continue
        raw = buffer[: piece.lies.size_bytes]
        yield piece.lies.byte_offset, raw.numpy().data
        source = raw.view(piece.target.data.dtype).view(piece.lies.shape)
        piece.target.data[piece.common.target].copy_(source[piece.common.source])


def _in_place(piece: _Piece) -> memoryview | None:
    """The target's memory, if the whole slice lies there as it lies in the file."""
    data, within = piece.target.data, piece.common.target
    region = data[within] if within else data
    whole = piece.common.elements == math.prod(piece.lies.shape)
    if not (whole and region.is_cpu and region.is_contiguous()):
        return None
    if region.is_conj() or region.is_neg():  # its memory holds other numbers than it shows
        return None
    alias = _NO_NUMPY_DTYPE.get(region.dtype)
    return (region if alias is None else region.view(alias)).numpy().data.cast("B")


def _fits(piece: TensorSlice, target: Held) -> bool:
    block = target.block
    if (piece.global_shape, piece.dtype) != (block.global_shape, block.dtype):
        raise WrongCheckpoint(
            f"{piece.name} is {piece.dtype} {piece.global_shape} in the checkpoint and "
            f"{block.dtype} {block.global_shape} here; train the same model, or start afresh"
        )
    return True


def _decode(model: type[T], path: Path, raw: bytes) -> T:
    try:
        return model.decode(raw)
    except ValidationError as error:
        raise CorruptCheckpoint(path, f"is no {model.__name__}") from error
