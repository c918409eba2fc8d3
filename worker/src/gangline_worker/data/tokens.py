"""A snapshot's tokens as windows, in the order of `SampleOrder`, each block verified once.

A window that touches a block which stays damaged after it was read again is replaced by another
window, drawn by a permutation of its own. That needs no agreement among ranks: each sample is read
by one rank only. The replacement is a function of seed, window and the damaged bytes, so it is the
same on any rank and at any world size. Positions do not move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gangline_worker.data.blocks import Complain, DamagedBlock, VerifiedBlocks
from gangline_worker.data.errors import DataError
from gangline_worker.data.manifest import Manifest
from gangline_worker.data.order import (
    STAND_IN_TRIES,
    GroupedOrder,
    SampleOrder,
    rank_share,
    stand_ins,
)
from gangline_worker.data.samples import Batch
from gangline_worker.data.source import Snapshot

_LISTED_AHEAD = 4096

Row = NDArray[np.int64]


@dataclass(frozen=True)
class Ranges:
    """Ranges of `count` tokens: where they begin, in what shard, and what blocks they touch."""

    count: int
    starts: list[int]
    shards: list[int]
    offsets: list[int]
    first_block: NDArray[np.int64]
    last_block: NDArray[np.int64]
    simple: NDArray[np.bool_]


class TokenReader:
    """Any range of a snapshot's tokens. One thread at a time."""

    def __init__(self, snapshot: Snapshot, *, max_damaged: int, complain: Complain) -> None:
        """Raises DataError when it holds tar shards."""
        if not isinstance(snapshot.manifest, Manifest):
            raise DataError(
                f"data: {snapshot.manifest.name} has tar shards, no tokens; a program of your own "
                "reads them by gangline_worker.data.opening.open_tar"
            )
        self.manifest = snapshot.manifest
        self.source = snapshot.source
        self.blocks = VerifiedBlocks(self.source, max_damaged=max_damaged, complain=complain)
        self._shard_tokens = self.manifest.shard_tokens
        self._block_tokens = self.manifest.block_bytes // self.manifest.item_type.itemsize

    def read(self, start: int, into: Row) -> None:
        """Fill `into`, shape (count,), with the tokens from `start` on.

        Raises:
            DamagedBlock: the range touches a quarantined block.
            DataShardError: too many blocks are damaged, or a shard cannot be opened.
            DataError, StoreError: the cache cannot be written; the store does not answer.
        """
        done, count = 0, len(into)
        while done < count:
            shard, offset = divmod(start + done, self._shard_tokens)
            take = min(count - done, self._shard_tokens - offset)
            first, last = start + done, start + done + take - 1
            self.blocks.make_right(first // self._block_tokens, last // self._block_tokens)
            into[done : done + take] = self.source.mapped[shard][offset : offset + take]
            done += take

    def locate(self, starts: NDArray[np.int64], count: int) -> Ranges:
        """Where the ranges of `count` tokens from each start lie."""
        shards, offsets = np.divmod(starts, self._shard_tokens)
        return Ranges(
            count,
            starts.tolist(),
            shards.tolist(),
            offsets.tolist(),
            first_block=starts // self._block_tokens,
            last_block=(starts + count - 1) // self._block_tokens,
            # Within one shard, and with no block between the first and the last.
            simple=(offsets + count <= self._shard_tokens) & (count <= self._block_tokens),
        )

    def expect(self, ranges: Ranges, which: slice, stride: int) -> None:
        """These ranges are needed now, and then those at each `stride` behind them."""
        share = which.stop - which.start
        blocks: dict[int, None] = {}
        for ahead in range(self.source.ahead // share + 1):
            begin = which.start + ahead * stride
            part = slice(begin, begin + share)
            for first, last in zip(ranges.first_block[part], ranges.last_block[part], strict=True):
                blocks.update(dict.fromkeys(range(int(first), int(last) + 1)))
        self.source.expect(list(blocks))

    def ready(self, ranges: Ranges, which: slice) -> bool:
        """Whether `rows` may be used for these: all is simple and verified."""
        verified = self.source.verified
        first, last = verified[ranges.first_block[which]], verified[ranges.last_block[which]]
        return bool((first & last & ranges.simple[which]).all())

    def rows(self, ranges: Ranges, which: slice, into: NDArray[np.int64]) -> None:
        """Fill each row of `into`, shape (ranges, count), with the tokens of its range."""
        count, tokens = ranges.count, self.source.mapped
        for row, shard, at in zip(into, ranges.shards[which], ranges.offsets[which], strict=True):
            row[:] = tokens[shard][at : at + count]


class TokenData:
    """Windows over a snapshot. Its state is one position.

    With `shuffle_bytes` windows are shuffled among so much of the data at a time, in whole shards;
    with 0 among all of it.
    """

    def __init__(
        self, reader: TokenReader, *, seq_len: int, seed: int, shuffle_bytes: int = 0
    ) -> None:
        self.reader = reader
        self.seq_len = seq_len
        self.seed = seed
        manifest = reader.manifest
        self.order = SampleOrder((manifest.tokens - 1) // seq_len, seed)
        if shuffle_bytes:
            group = max(1, manifest.shard_tokens // seq_len)
            together = shuffle_bytes // (manifest.shard_tokens * manifest.item_type.itemsize)
            self.order = GroupedOrder(self.order.n, seed, group, max(1, together))
        self.vocab_size = reader.manifest.tokenizer.vocab_size
        self._replaced = 0
        self._ahead_from, self._ahead = 0, reader.locate(np.empty(0, dtype=np.int64), seq_len + 1)

    def digest(self) -> str:
        """The digest in the snapshot's name."""
        return self.reader.manifest.digest

    def counts(self) -> dict[str, float]:
        """Counts of damage so far; empty when there was none."""
        return self.reader.blocks.counts(self._replaced)

    def batch(self, position: int, size: int, rank: int, world_size: int) -> Batch:
        """A rank's part of the global batch of `size` samples at `position`.

        Raises:
            DataShardError: the data has more damage than it may have.
            DataError, StoreError: the cache cannot be written; the store does not answer.
        """
        share = rank_share(size, world_size)
        ranges, which = self._listed(position + rank * share, share)
        rows = np.empty((share, self.seq_len + 1), dtype=np.int64)
        if self.reader.ready(ranges, which):
            self.reader.rows(ranges, which, rows)
        else:
            if self.reader.source.ahead:
                self.reader.expect(ranges, which, size)
            for row, start in zip(rows, ranges.starts[which], strict=True):
                self._fill(row, start)
        return Batch(inputs=rows[:, :-1], targets=rows[:, 1:])

    def _listed(self, position: int, count: int) -> tuple[Ranges, slice]:
        """The windows at some positions; listed ahead, as a few cost as much as a thousand."""
        at = position - self._ahead_from
        if at < 0 or at + count > len(self._ahead.starts):
            windows = self.order.at(position, max(count, _LISTED_AHEAD))
            starts = windows.astype(np.int64) * self.seq_len
            self._ahead = self.reader.locate(starts, self.seq_len + 1)
            self._ahead_from, at = position, 0
        return self._ahead, slice(at, at + count)

    def _fill(self, row: Row, start: int) -> None:
        try:
            self.reader.read(start, row)
        except DamagedBlock:
            self._replaced += 1
            self._stand_in(row, start // self.seq_len)

    def _stand_in(self, row: Row, window: int) -> None:
        for other in stand_ins(window, self.order.n, self.seed):
            try:
                self.reader.read(other * self.seq_len, row)
            except DamagedBlock:
                continue
            return
        raise self.reader.blocks.hopeless(STAND_IN_TRIES)
