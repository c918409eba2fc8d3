"""Slices: each byte is written once, and any sharding can be cut from any other."""

from __future__ import annotations

import math
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline_schemas.checkpoint import EACH_COPY_BYTES
from gangline_worker.checkpoint import layout
from gangline_worker.checkpoint.layout import ALIGNMENT_BYTES, Block, chunk, lay_out, overlap, owned

SHAPES = st.lists(st.integers(1, 7), min_size=0, max_size=3).map(tuple)


def whole(shape: tuple[int, ...], name: str = "w", dtype: str = "float32") -> Block:
    return Block(name, dtype, shape, (0,) * len(shape), shape)


@given(rows=st.integers(0, 200), parts=st.integers(1, 40))
def test_chunks_cover_all_rows_once(rows: int, parts: int) -> None:
    cuts = [chunk(rows, index, parts) for index in range(parts)]
    assert [row for start, count in cuts for row in range(start, start + count)] == list(
        range(rows)
    )


@patch.object(layout, "EACH_COPY_BYTES", -1)
@given(shape=SHAPES.filter(bool), replicas=st.integers(1, 9))
def test_replicas_write_each_element_once(shape: tuple[int, ...], replicas: int) -> None:
    parts = [owned(whole(shape), replica, replicas) for replica in range(replicas)]
    written = [part for part in parts if part.size_bytes]
    assert sum(part.size_bytes for part in written) == 4 * math.prod(shape)
    for one in written:
        assert sum(overlap(one, other) is not None for other in written) == 1


@patch.object(layout, "EACH_COPY_BYTES", -1)
@given(shape=SHAPES.filter(bool), saved=st.integers(1, 6), loaded=st.integers(1, 6))
def test_every_element_is_found_once_at_another_world_size(
    shape: tuple[int, ...], saved: int, loaded: int
) -> None:
    sources = [owned(whole(shape), rank, saved) for rank in range(saved)]
    for rank in range(loaded):
        target = owned(whole(shape), rank, loaded)
        if not target.size_bytes:
            continue
        found = [overlap(source, target) for source in sources if source.size_bytes]
        assert sum(common.elements for common in found if common) == math.prod(target.shape)


@pytest.mark.parametrize("rows", [0, 1, EACH_COPY_BYTES // 4])
def test_a_small_block_is_written_by_each_replica(rows: int) -> None:
    for block in (whole((rows,)), whole(())):
        assert [owned(block, replica, 3) for replica in range(3)] == [block] * 3
    larger = whole((EACH_COPY_BYTES // 4 + 1,))
    assert all(owned(larger, replica, 3) != larger for replica in range(3))


def test_an_overlap_names_both_ranges() -> None:
    source = Block("w", "float32", (10, 4), (4, 0), (3, 4))
    target = Block("w", "float32", (10, 4), (6, 1), (4, 2))
    common = overlap(source, target)
    assert common is not None
    assert common.source == (slice(2, 3), slice(1, 3))
    assert common.target == (slice(0, 1), slice(0, 2))
    assert common.elements == 2


@given(
    sizes=st.lists(st.tuples(st.sampled_from(["float32", "bfloat16", "bool"]), SHAPES), max_size=20)
)
def test_slices_are_aligned_and_do_not_touch(sizes: list[tuple[str, tuple[int, ...]]]) -> None:
    slices, end = lay_out(whole(shape, f"t{i}", dtype) for i, (dtype, shape) in enumerate(sizes))
    last = 0
    for piece in slices:
        assert piece.byte_offset % ALIGNMENT_BYTES == 0
        assert piece.byte_offset >= last
        last = piece.byte_offset + piece.size_bytes
    assert last == end
    assert len(slices) == len(sizes)
