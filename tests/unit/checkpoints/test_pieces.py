"""What is kept of manifests to compare them: less than their bytes, and the same slices."""

from __future__ import annotations

import tracemalloc

from gangline_checkpoints.core.policy.pieces import Piece, Pieces
from gangline_schemas.checkpoint import RankManifest, TensorSlice, shard_name
from gangline_schemas.events.workers import ObjectDigest

RANKS, TENSORS, ROWS = 64, 100, 16


def manifest(rank: int) -> bytes:
    size_bytes = ROWS * 4096 * 4
    tensors = tuple(
        TensorSlice(
            name=f"model.layers.{number}.attention.wq.weight",
            dtype="float32",
            global_shape=(ROWS * RANKS, 4096),
            start=(rank * ROWS, 0),
            shape=(ROWS, 4096),
            byte_offset=number * size_bytes,
            size_bytes=size_bytes,
        )
        for number in range(TENSORS)
    )
    shard = ObjectDigest(key=shard_name(rank), size_bytes=TENSORS * size_bytes, xxh3="0" * 32)
    return RankManifest(
        job_id="job-1",
        attempt=1,
        step=20,
        rank=rank,
        world_size=RANKS,
        shard=shard,
        tensors=tensors,
    ).encode()


def test_the_slices_of_a_gang_take_less_memory_than_its_manifests() -> None:
    raw = [manifest(rank) for rank in range(RANKS)]
    pieces = Pieces()
    pieces.of(RankManifest.decode(raw[0]).tensors)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    kept = [pieces.of(RankManifest.decode(item).tensors) for item in raw]
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept) == RANKS
    assert after - before < sum(map(len, raw))


def test_pieces_say_what_their_slices_say() -> None:
    tensors = RankManifest.decode(manifest(3)).tensors
    found = Pieces().of(tensors)
    assert [piece.key for piece in found] == [piece.key for piece in tensors]
    assert [piece.size_bytes for piece in found] == [piece.size_bytes for piece in tensors]
    assert isinstance(found[0], Piece)
    assert found[0].shape is found[1].shape
