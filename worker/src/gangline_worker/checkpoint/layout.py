"""Where tensors lie in shard files: pure arithmetic over blocks, without torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from gangline_schemas.checkpoint import EACH_COPY_BYTES, ITEM_BYTES, TensorSlice

ALIGNMENT_BYTES = 64  # of each slice in its file, so that it can be viewed as its dtype in place


class Block(NamedTuple):
    """`shape` elements from `start` of the tensor `name` of `global_shape`."""

    name: str
    dtype: str
    global_shape: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the block's elements."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def chunk(rows: int, index: int, parts: int) -> tuple[int, int]:
    """(start, count) of part `index` when `rows` are cut as `torch.chunk` and FSDP2 cut them."""
    size = -(-rows // parts)
    start = min(rows, index * size)
    return start, min(rows, start + size) - start


def owned(block: Block, replica: int, replicas: int) -> Block:
    """The part of a block that one of its replicas writes; the parts together are the block.

    Rows are dealt out by `chunk`, so replicated training writes what sharded training writes.
    A small one is written whole by each, so that none reads another's file for it.
    """
    if replicas == 1 or block.size_bytes <= EACH_COPY_BYTES:
        return block
    offset, count = chunk(block.shape[0], replica, replicas)
    return Block(
        block.name,
        block.dtype,
        block.global_shape,
        (block.start[0] + offset, *block.start[1:]),
        (count, *block.shape[1:]),
    )


def lay_out(blocks: Iterable[Block]) -> tuple[tuple[TensorSlice, ...], int]:
    """Put the non-empty blocks one after the other; gives the slices and the file's size."""
    slices, end = [], 0
    for block in blocks:
        if not block.size_bytes:
            continue
        offset = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        slices.append(
            TensorSlice(
                name=block.name,
                dtype=block.dtype,
                global_shape=block.global_shape,
                start=block.start,
                shape=block.shape,
                byte_offset=offset,
                size_bytes=block.size_bytes,
            )
        )
        end = offset + block.size_bytes
    return tuple(slices), end


class Overlap(NamedTuple):
    """The elements that two blocks of one tensor share, as ranges within each of them.

    No ranges, if the blocks are one and the same: `data[()]` is all of it.
    """

    source: tuple[slice, ...]
    target: tuple[slice, ...]
    elements: int


def overlap(source: TensorSlice | Block, target: TensorSlice | Block) -> Overlap | None:
    """The part of `target` that `source` has, or None. Both must be of the same tensor."""
    if (source.start, source.shape) == (target.start, target.shape):
        elements = math.prod(source.shape)
        return Overlap((), (), elements) if elements else None
    in_source, in_target, elements = [], [], 1
    for s_start, s_count, t_start, t_count in zip(
        source.start, source.shape, target.start, target.shape, strict=True
    ):
        low, high = max(s_start, t_start), min(s_start + s_count, t_start + t_count)
        if high <= low:
            return None
        in_source.append(slice(low - s_start, high - s_start))
        in_target.append(slice(low - t_start, high - t_start))
        elements *= high - low
    return Overlap(tuple(in_source), tuple(in_target), elements)
