"""Whether the ranks' manifests together are one whole checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gangline_checkpoints.core.policy.chunks import layout_problem
from gangline_checkpoints.core.policy.overlap import overlap_problem
from gangline_checkpoints.core.policy.pieces import Piece
from gangline_schemas.checkpoint import (
    EACH_COPY_BYTES,
    ITEM_BYTES,
    RankManifest,
    SliceKey,
    TensorSlice,
    shard_name,
)
from gangline_schemas.events.workers import CheckpointShardWritten


def manifest_problem(manifest: RankManifest, written: CheckpointShardWritten) -> str | None:
    """The first difference between a rank's manifest and the rank's report, or None."""
    reported = (written.job_id, written.attempt, written.step, written.rank, written.world_size)
    says = (manifest.job_id, manifest.attempt, manifest.step, manifest.rank, manifest.world_size)
    if reported != says:
        return f"is of job, attempt, step, rank, world size {says}, reported were {reported}"
    shard = written.shards[0]
    if manifest.shard.key != shard_name(written.rank):
        return "names another shard file than its own"
    if (manifest.shard.size_bytes, manifest.shard.xxh3) != (shard.size_bytes, shard.xxh3):
        return "gives another size or digest of the shard than was reported"
    return layout_problem(manifest) or _file_problem(manifest.tensors, manifest.whole_bytes)


def coverage_problem(by_rank: Sequence[Sequence[Piece]]) -> str | None:
    """The first reason why the ranks' slices do not cover each tensor exactly once, or None.

    A small slice may lie with several ranks.
    """
    by_name: dict[str, list[Piece]] = {}
    copies: set[SliceKey] = set()
    for slices in by_rank:
        own: set[SliceKey] = set()
        for piece in slices:
            if piece.size_bytes <= EACH_COPY_BYTES:
                key = piece.key
                known = key in copies and key not in own
                own.add(key)
                if known:
                    continue
            by_name.setdefault(piece.name, []).append(piece)
        copies |= own
    for name, pieces in sorted(by_name.items()):
        problem = _tensor_problem(pieces)
        if problem is not None:
            return f"tensor {name}: {problem}"
    return None


def _file_problem(pieces: Sequence[TensorSlice], size_bytes: int) -> str | None:
    end = 0
    for piece in sorted(pieces, key=lambda item: (item.byte_offset, item.size_bytes)):
        item_bytes = ITEM_BYTES.get(piece.dtype)
        if item_bytes is None:
            return f"tensor {piece.name}: the dtype {piece.dtype} is not known"
        if piece.size_bytes != math.prod(piece.shape) * item_bytes:
            return f"tensor {piece.name}: {piece.size_bytes} bytes do not fit its shape"
        if piece.size_bytes and piece.byte_offset < end:
            return f"tensor {piece.name}: overlaps another one in the file"
        end = max(end, piece.byte_offset + piece.size_bytes)
    return None if end <= size_bytes else "names bytes past the end of its shard"


def _tensor_problem(pieces: Sequence[Piece]) -> str | None:
    whole, dtype = pieces[0].global_shape, pieces[0].dtype
    filled = []
    for piece in pieces:
        if piece.global_shape != whole or piece.dtype != dtype:
            return "the ranks disagree on its shape or dtype"
        if not len(piece.start) == len(piece.shape) == len(whole):
            return "a slice has another number of dimensions"
        if any(
            start < 0 or count < 0 or start + count > size
            for start, count, size in zip(piece.start, piece.shape, whole, strict=True)
        ):
            return "a slice reaches past its edge"
        if math.prod(piece.shape):
            filled.append(piece)
    elements = sum(math.prod(piece.shape) for piece in filled)
    if elements != math.prod(whole):
        return f"the slices hold {elements} of {math.prod(whole)} elements"
    # All within bounds and as many elements as the tensor: exact unless two slices overlap.
    return overlap_problem(filled)
