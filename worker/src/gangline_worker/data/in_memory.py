"""Blocks of shards in memory, for a process whose cache has no room on its disk."""

from __future__ import annotations

import mmap
from collections.abc import Collection

KEPT_BYTES = 256 << 20
"""So much is kept, and all blocks of the batch that is read."""
_NORESERVE = 0x4000
"""Of mmap(2): a shard may be larger than the memory. Python names it from 3.13 on."""


class BlocksInMemory:
    """Parts of shards by block, counted over all shards. Pages that hold nothing take no memory.

    Used by one thread.
    """

    def __init__(self) -> None:
        self._shards: dict[int, mmap.mmap] = {}
        self._kept: dict[int, tuple[int, int, int]] = {}  # the oldest first

    def shard(self, shard: int, size_bytes: int) -> mmap.mmap:
        """All of a shard, zeros where nothing was put. Raises OSError."""
        if shard not in self._shards:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
            self._shards[shard] = mmap.mmap(-1, size_bytes, flags=flags)
        return self._shards[shard]

    def put(self, block: int, shard: int, start: int, data: bytes) -> None:
        """Keep a block's bytes at their place in its shard."""
        self._shards[shard][start : start + len(data)] = data
        self._kept[block] = (shard, start, len(data))

    def drop_old(self, needed: Collection[int]) -> list[int]:
        """Drop blocks until `KEPT_BYTES` are left, the oldest first, but none that is needed."""
        over = sum(length for _, _, length in self._kept.values()) - KEPT_BYTES
        dropped = []
        for block, (shard, start, length) in list(self._kept.items()):
            if over <= 0:
                break
            if block in needed:
                continue
            self._release(shard, start, length)
            del self._kept[block]
            over -= length
            dropped.append(block)
        return dropped

    def _release(self, shard: int, start: int, length: int) -> None:
        """Give whole pages back."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (start + length) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > first:
            self._shards[shard].madvise(mmap.MADV_DONTNEED, first, end - first)
