"""Which files of a checkpoint a node brings: at any two sizes those that hold its ranks' rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline_schemas.checkpoint import RankManifest, TensorSlice
from gangline_schemas.events.workers import ObjectDigest
from gangline_worker.agent.checkpoints.share import Share

SHARD = ObjectDigest(key="rank-00000.bin", size_bytes=0, xxh3="0" * 32)


def cut(rank: int, of: int, world_size: int) -> range:
    """The rows that torch's chunking gives a rank."""
    each = -(-of // world_size)
    return range(of)[rank * each : (rank + 1) * each]


def manifest(rank: int, saved: int, tensors: set[int], *, alone: bool = True) -> RankManifest:
    """What a rank wrote of tensors with so many rows, and of a scalar that each rank has."""
    slices = [
        TensorSlice(
            name=f"of-{of}", dtype="uint8", global_shape=(of, 2), start=(rows.start, 0),
            shape=(len(rows), 2), byte_offset=0, size_bytes=0,
        )
        for of in tensors
        if (rows := cut(rank, of, saved))
    ]  # fmt: skip
    scalar = TensorSlice(
        name="step", dtype="float32", global_shape=(), start=(), shape=(), byte_offset=0,
        size_bytes=4,
    )  # fmt: skip
    return RankManifest(
        job_id="job", attempt=1, step=1, rank=rank, world_size=saved, shard=SHARD,
        tensors=(*slices, scalar), alone=alone,
    )  # fmt: skip


@given(
    saved=st.integers(1, 40),
    world_size=st.integers(1, 40),
    node=st.tuples(st.integers(0, 39), st.integers(1, 8)),
    tensors=st.sets(st.integers(2, 200), min_size=1, max_size=3),
)
def test_it_needs_the_ranks_that_held_a_row_of_its_own(
    saved: int, world_size: int, node: tuple[int, int], tensors: set[int]
) -> None:
    first = node[0] % world_size
    share = Share(range(first, min(world_size, first + node[1])), world_size)
    sources = share.manifests_of(saved)
    assert set(sources) <= set(range(saved))
    needed = share.needs([manifest(rank, saved, tensors) for rank in sources], saved)
    if saved == world_size:
        assert needed == set(sources) == set(share.ranks)
        return
    held = {
        rank
        for rank in range(saved)
        for of in tensors
        for mine in share.ranks
        if {*cut(rank, of, saved)} & {*cut(mine, of, world_size)}
    }
    if held:
        assert needed == held
    else:  # of its few tensors it has no row, but scalars
        assert needed
        assert needed <= set(sources)


def test_at_another_size_a_few_manifests_tell() -> None:
    share = Share(range(496, 504), 1016)
    sources = share.manifests_of(1024)
    assert sources == [0, *range(496, 504), *range(504, 508)]
    wide, narrow = 1 << 20, 4096  # the wide one's rows lie where they lay, the narrow one's do not
    needed = share.needs([manifest(rank, 1024, {wide, narrow}) for rank in sources], 1024)
    assert needed == {*range(500, 509), *range(620, 630)}


@pytest.mark.parametrize("world_size", [2, 3])
def test_where_bytes_lie_with_other_ranks_it_may_need_all(world_size: int) -> None:
    parts = [manifest(rank, 2, {8}, alone=rank == 0) for rank in (0, 1)]
    assert Share(range(1, 2), world_size).needs(parts, 2) is None
