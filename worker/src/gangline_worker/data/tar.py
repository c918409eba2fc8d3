"""Samples of tar shards, in the order of `SampleOrder`, each block verified once.

A sample is known by its shard and its number in it, so the state of the data is one position at any
world size, as for tokens. A sample that touches a block which stays damaged is replaced by another
one, the same on whatever rank it is read.
"""

from __future__ import annotations

import io
import tarfile
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

from gangline_worker.data.blocks import Complain, DamagedBlock, VerifiedBlocks
from gangline_worker.data.manifest import TarManifest
from gangline_worker.data.order import STAND_IN_TRIES, GroupedOrder, SampleOrder, stand_ins
from gangline_worker.data.source import Source, offsets_of
from gangline_worker.data.tar_index import split_name


@dataclass(frozen=True)
class TarSample:
    """The files of one sample by extension; `index` is its number in the shard, from 0."""

    key: str
    shard: str
    index: int
    files: Mapping[str, bytes]


class TarData:
    """Samples over a snapshot of tar shards. Its state is one position. One thread at a time.

    `read_index` reads the file of an index; it raises OSError or StoreError. With `shuffle_bytes`
    samples are shuffled among so much of the data at a time, with 0 among all of it.
    """

    def __init__(
        self,
        manifest: TarManifest,
        source: Source,
        read_index: Callable[[str], bytes],
        *,
        seed: int,
        max_damaged: int,
        complain: Complain,
        shuffle_bytes: int = 0,
    ) -> None:
        self.manifest = manifest
        self.seed = seed
        self.blocks = VerifiedBlocks(source, max_damaged=max_damaged, complain=complain)
        self._source, self._read_index = source, read_index
        self._firsts = [0, *accumulate(shard.samples.count for shard in manifest.shards)]
        self._offsets: dict[int, NDArray[np.uint64]] = {}
        self._replaced = 0
        self.order = SampleOrder(manifest.samples, seed)
        if shuffle_bytes:
            shards = len(manifest.shards)
            shard_bytes = sum(shard.size_bytes for shard in manifest.shards) // shards
            group = max(1, manifest.samples // shards)
            self.order = GroupedOrder(
                self.order.n, seed, group, max(1, shuffle_bytes // shard_bytes)
            )

    def digest(self) -> str:
        """The digest in the snapshot's name: whether two ranks, or two attempts, read the same."""
        return self.manifest.digest

    def counts(self) -> dict[str, float]:
        """Counts of damage so far; empty when there was none."""
        return self.blocks.counts(self._replaced)

    def batch(self, position: int, size: int, rank: int, world_size: int) -> list[TarSample]:
        """A rank's part of the global batch of `size` samples at `position`.

        Raises:
            BatchError: the batch cannot be shared out.
            DataShardError: the data has more damage than it may have.
            DataError, StoreError: the cache cannot be written; the store does not answer.
        """
        wanted = self.order.of_rank(position, size, rank, world_size).tolist()
        if self._source.ahead:
            self._expect(wanted, position + size, size, rank, world_size)
        return [self._readable(number) for number in wanted]

    def sample(self, number: int) -> TarSample:
        """A sample by its number among all, in the order of shards.

        Raises:
            DamagedBlock: it touches a quarantined block.
            DataShardError, DataError, StoreError: as `batch`.
        """
        shard, index, start, end = self._place(number)
        self.blocks.make_right(*self._blocks(shard, start, end))
        key, files = _files(self._source.mapped[shard][start:end].tobytes())
        return TarSample(key, self.manifest.shards[shard].name, index, files)

    def _place(self, number: int) -> tuple[int, int, int, int]:
        """A sample's shard, its number in it, and its first byte there and the one after it."""
        shard = bisect_right(self._firsts, number) - 1
        index = number - self._firsts[shard]
        offsets, entry = self._offsets_of(shard), self.manifest.shards[shard]
        end = int(offsets[index + 1]) if index + 1 < len(offsets) else entry.end
        return shard, index, int(offsets[index]), end

    def _blocks_of(self, number: int) -> tuple[int, int]:
        """The first and the last block of a sample."""
        shard, _, start, end = self._place(number)
        return self._blocks(shard, start, end)

    def _blocks(self, shard: int, start: int, end: int) -> tuple[int, int]:
        first, size = self._source.first_block(shard), self.manifest.block_bytes
        return first + start // size, first + (end - 1) // size

    def _expect(
        self, wanted: list[int], position: int, size: int, rank: int, world_size: int
    ) -> None:
        """Have the blocks of a batch fetched if one is missing, and then those of later batches."""
        blocks = [self._blocks_of(number) for number in wanted]
        if not all(self._source.verified[first : last + 1].all() for first, last in blocks):
            blocks += self._blocks_ahead(position, size, rank, world_size)
            self._source.expect(list(chain(*(range(first, last + 1) for first, last in blocks))))

    def _blocks_ahead(
        self, position: int, size: int, rank: int, world_size: int
    ) -> list[tuple[int, int]]:
        """The blocks of some later batches, as far as the indexes of their shards are read."""
        found: list[tuple[int, int]] = []
        for at in range(position, position + self._source.ahead * size, size):
            found += (
                self._blocks_of(number)
                for number in self.order.of_rank(at, size, rank, world_size).tolist()
                if bisect_right(self._firsts, number) - 1 in self._offsets
            )
            if len(found) >= self._source.ahead:
                break
        return found

    def _readable(self, number: int) -> TarSample:
        try:
            return self.sample(number)
        except DamagedBlock:
            self._replaced += 1
        for other in stand_ins(number, self.order.n, self.seed):
            try:
                return self.sample(other)
            except DamagedBlock:
                continue
        raise self.blocks.hopeless(STAND_IN_TRIES)

    def beginning_in(self, block: int) -> range:
        """The numbers of the samples that begin in a block, counted over all shards."""
        shard, within = self._source.place(block)
        start, length = self.manifest.block_range(shard, within)
        first, end = np.searchsorted(self._offsets_of(shard), [start, start + length])
        return range(self._firsts[shard] + int(first), self._firsts[shard] + int(end))

    def _offsets_of(self, shard: int) -> NDArray[np.uint64]:
        """Where the shard's samples begin; read at its first use."""
        known = self._offsets.get(shard)
        if known is None:
            known = self._offsets[shard] = offsets_of(self.manifest.shards[shard], self._read_index)
        return known


def _files(raw: bytes) -> tuple[str, dict[str, bytes]]:
    """The key and the files of the entries of one sample."""
    found: dict[str, bytes] = {}
    key = ""
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as entries:
        while (member := _next(entries)) is not None:
            parts = split_name(member.name)
            if parts is not None and (content := entries.extractfile(member)) is not None:
                key, extension = parts
                found[extension] = content.read()
    return key, found


def _next(entries: tarfile.TarFile) -> tarfile.TarInfo | None:
    """The next entry of a sample, whose bytes are verified and could be read when indexed."""
    try:
        return entries.next()
    except tarfile.ReadError:  # a global header at the end, of the entries behind the sample
        return None
