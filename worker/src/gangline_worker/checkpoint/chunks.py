"""Which runs of a rank's bytes a save writes, and which it leaves where they lie: no torch, no I/O.

A rank's bytes are cut into chunks at tensors, so that what is trained and what is frozen lie in
chunks of their own. A chunk is known by its digest; one that an earlier committed save of the
attempt wrote is not written again. It is named where it was first written, so no chain is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gangline_schemas.checkpoint import Chunk, TensorSlice

CHUNK_BYTES = 8 << 20
SMALL_BYTES = 256 << 10
"""Smaller tensors share a chunk with their neighbours: each chunk is a line of the manifest."""
WORTH_IT = 8
"""One part in so many must be unchanged: a reference keeps the whole file that it points to."""
TABLES = 8

CHANGED = "step {} was saved before, with another state; give each save a step of its own"

Span = tuple[int, int]
"""Where a chunk begins and ends in the rank's bytes."""


def cut(slices: Sequence[TensorSlice], size_bytes: int) -> tuple[Span, ...]:
    """The chunks of `size_bytes` bytes in which the slices lie in this order: all, without gaps."""
    edges: list[int] = []
    small_from: int | None = None
    for piece in slices:
        if piece.size_bytes < SMALL_BYTES:
            if small_from is None or piece.byte_offset - small_from >= SMALL_BYTES:
                small_from = piece.byte_offset
                edges.append(small_from)
            continue
        small_from = None
        edges += range(piece.byte_offset, piece.byte_offset + piece.size_bytes, CHUNK_BYTES)
    return tuple(pairwise([*edges, size_bytes]))


def padding(slices: Sequence[TensorSlice]) -> Iterator[Span]:
    """The spans between slices, which belong to none."""
    end = 0
    for piece in slices:
        if piece.byte_offset > end:
            yield end, piece.byte_offset
        end = piece.byte_offset + piece.size_bytes


@dataclass(frozen=True, slots=True)
class Table:
    """Where the chunks of one save lie."""

    step: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """All chunks of a save, and the spans that go into its own file, in order."""

    table: Table
    spans: tuple[Span, ...]


def plan(step: int, spans: Sequence[Span], digests: Sequence[str], base: Table | None) -> Written:
    """The bytes that a save of this step writes after an earlier one (None: it is whole)."""
    if base is not None:
        left_out = _against(step, spans, digests, base)
        unchanged = sum(chunk.size_bytes for chunk in left_out.table.chunks if chunk.step != step)
        if unchanged * WORTH_IT >= sum(end - start for start, end in spans):
            return left_out
    return _against(step, spans, digests, Table(step, ()))


def _against(step: int, spans: Sequence[Span], digests: Sequence[str], base: Table) -> Written:
    known = {(chunk.size_bytes, chunk.xxh3): chunk for chunk in base.chunks}
    chunks: list[Chunk] = []
    written: list[Span] = []
    offset = 0
    for (start, end), xxh3 in zip(spans, digests, strict=True):
        size = end - start
        there = known.get((size, xxh3))
        if there is None:
            there = Chunk(size_bytes=size, xxh3=xxh3, step=step, byte_offset=offset)
            written.append((start, end))
            offset += size
        chunks.append(there)
    return Written(Table(step, tuple(chunks)), tuple(written))


class Tables:
    """The chunks of this rank's saves of one attempt, and which save must be whole.

    `committed` gives the newest step of the attempt that may be referred to, None: none. Each
    `full_every`-th save is whole. Later ones refer to nothing older, however late it is committed,
    and are whole until it is.
    """

    def __init__(self, full_every: int, committed: Callable[[], int | None]) -> None:
        self._full_every = full_every
        self._committed = committed
        self._tables: dict[int, Table] = {}
        self._oldest: int | None = None
        self._since_oldest = 0

    @property
    def wanted(self) -> bool:
        """Whether saves are cut into chunks at all."""
        return self._full_every > 1

    @property
    def _begins_anew(self) -> bool:
        return self._oldest is None or self._since_oldest + 1 >= self._full_every

    def holds(self, step: int, digests: Sequence[str]) -> bool:
        """Whether a save of this step left just these chunks.

        Raises:
            ValueError: it left others; its file may be referred to, so it is not written again.
        """
        table = self._tables.get(step)
        if table is not None and [chunk.xxh3 for chunk in table.chunks] != list(digests):
            raise ValueError(CHANGED.format(step))
        return table is not None

    def base(self) -> Table | None:
        """The chunks that the next save may refer to; None: it must be whole."""
        step = self._committed()
        if step is None or self._begins_anew or step < (self._oldest or 0):
            return None
        return self._tables.get(step)

    def add(self, table: Table) -> None:
        """A save is whole on disk."""
        if self._begins_anew:
            self._oldest, self._since_oldest = table.step, 0
        else:
            self._since_oldest += 1
        self._tables[table.step] = table
        while len(self._tables) > TABLES:
            del self._tables[next(iter(self._tables))]
