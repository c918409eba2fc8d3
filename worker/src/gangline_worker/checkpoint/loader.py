"""Reading a committed checkpoint, verified byte by byte, at any world size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import ValidationError

from gangline_schemas.base import Model
from gangline_schemas.checkpoint import CommitRecord, RankManifest, TensorSlice
from gangline_schemas.events.workers import ObjectDigest
from gangline_worker.checkpoint.files import CorruptCheckpoint, read_verified
from gangline_worker.checkpoint.layout import overlap
from gangline_worker.checkpoint.local import Held

COMMIT_FILE = "COMMIT.json"

T = TypeVar("T", bound=Model)


class WrongCheckpoint(ValueError):
    """A sound checkpoint that is not of this model; the message names the tensor."""


class Checkpoint:
    """One committed checkpoint in a local folder. Digests come from its commit record alone."""

    def __init__(self, folder: Path) -> None:
        """Read the commit record.

        Raises:
            CorruptCheckpoint: there is none, or it cannot be understood.
        """
        self.folder = folder
        path = folder / COMMIT_FILE
        try:
            self.record = _decode(CommitRecord, path, path.read_bytes())
        except OSError as error:
            raise CorruptCheckpoint(path, f"cannot be read: {error.strerror or error}") from error

    @property
    def step(self) -> int:
        """How many steps are in it."""
        return self.record.step

    @cached_property
    def manifests(self) -> tuple[RankManifest, ...]:
        """All ranks' manifests, verified.

        Raises:
            CorruptCheckpoint: one is not what was committed.
        """
        return tuple(
            _decode(
                RankManifest, self._path(digest), bytes(read_verified(self._path(digest), digest))
            )
            for digest in self.record.manifests
        )

    def manifest_for(self, rank: int) -> RankManifest:
        """The manifest whose state a rank goes on from: its own, or that of rank 0."""
        return self.manifests[rank if rank < len(self.manifests) else 0]

    def tensors(self) -> dict[str, TensorSlice]:
        """One slice of each tensor in it: its dtype and whole shape, by name."""
        return {piece.name: piece for manifest in self.manifests for piece in manifest.tensors}

    @torch.no_grad()
    def fill(self, wanted: Mapping[str, Held]) -> None:
        """Copy what each `Held` names into its data. Files that hold none of it are not read.

        Raises:
            CorruptCheckpoint: a file that was read is not what was committed.
            WrongCheckpoint: a tensor is missing or has another shape or dtype.
        """
        elements = dict.fromkeys(wanted, 0)
        for manifest, digest in zip(self.manifests, self.record.shards, strict=True):
            pieces = [
                (piece, target, common)
                for piece in manifest.tensors
                if (target := wanted.get(piece.name)) is not None
                and _fits(piece, target)
                and (common := overlap(piece, target.block)) is not None
            ]
            if not pieces:
                continue
            buffer = torch.empty(digest.size_bytes, dtype=torch.uint8)
            read_verified(self._path(digest), digest, buffer.numpy().data)
            for piece, target, common in pieces:
                end = piece.byte_offset + piece.size_bytes
                if end > digest.size_bytes:
                    raise CorruptCheckpoint(self._path(digest), f"{piece.name} lies beyond its end")
                source = buffer[piece.byte_offset : end].view(target.data.dtype).view(piece.shape)
                target.data[common.target].copy_(source[common.source])
                elements[piece.name] += common.elements
        for name, target in wanted.items():
            if elements[name] != math.prod(target.block.shape):
                raise WrongCheckpoint(
                    f"{self.folder} holds {elements[name]} of the {math.prod(target.block.shape)} "
                    f"elements of {name} that this rank needs; it is of another model"
                )

    def _path(self, digest: ObjectDigest) -> Path:
        """Keys are those of the store; here the file's name alone counts."""
        return self.folder / Path(digest.key).name


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
