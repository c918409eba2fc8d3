"""Reading a rank's bytes that lie in chunks of several files, each chunk verified by its digest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Self

import xxhash

from gangline_schemas.checkpoint import Chunk
from gangline_worker.checkpoint.files import READ_CHUNK_BYTES, CorruptCheckpoint


def read_chunks(
    chunks: Sequence[Chunk],
    files: Mapping[int, tuple[Path, int]],
    pieces: Iterable[tuple[int, memoryview]],
) -> None:
    """Fill each view with the bytes from its offset on; chunks that none needs are not read.

    `files` gives path and committed size of the file of each step that chunks name. Offsets, into
    the chunks one after the other, ascend, and pieces do not overlap. The next piece is asked for
    when the one before is filled. After an error the views hold anything.

    Raises:
        CorruptCheckpoint: a file is missing or of another size, or a chunk's bytes are others.
        ValueError: the pieces are out of order.
    """
    size = sum(chunk.size_bytes for chunk in chunks)
    unused = memoryview(bytearray(READ_CHUNK_BYTES))
    with _ChunkReader(chunks, files) as reader:
        for offset, view in chain(pieces, [(size, memoryview(b""))]):
            if offset < reader.position:
                raise ValueError(f"the piece at {offset:,} begins before {reader.position:,}")
            reader.skip(offset, unused)
            reader.fill(view)


class _ChunkReader:
    """Goes through the chunks once; at the end of each that was read it is known to be right."""

    def __init__(self, chunks: Sequence[Chunk], files: Mapping[int, tuple[Path, int]]) -> None:
        self.position = 0
        self._chunks = chunks
        self._index = -1
        self._files = files
        self._opened: dict[int, FileIO] = {}
        self._stack = ExitStack()
        self._left = 0  # of the present chunk, to be read
        self._digest = xxhash.xxh3_128()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def skip(self, offset: int, unused: memoryview) -> None:
        """Move to `offset`; bytes that are read for a chunk's digest alone go to `unused`."""
        while self.position < offset:
            if not self._left:
                self._next()
            whole = self._left == self._chunks[self._index].size_bytes
            if whole and self.position + self._left <= offset:
                self.position += self._left
                self._left = 0
            else:
                self._read(unused[: min(self._left, offset - self.position, len(unused))])

    def fill(self, view: memoryview) -> None:
        """Read the next bytes into all of `view`."""
        while view:
            if not self._left:
                self._next()
            count = min(len(view), self._left)
            for start in range(0, count, READ_CHUNK_BYTES):
                self._read(view[start : min(count, start + READ_CHUNK_BYTES)])
            view = view[count:]

    def _next(self) -> None:
        self._index += 1
        self._left = self._chunks[self._index].size_bytes
        self._digest = xxhash.xxh3_128()

    def _read(self, view: memoryview) -> None:
        """Bytes of the present chunk; at its end its digest is compared."""
        chunk = self._chunks[self._index]
        path, _ = self._files[chunk.step]
        at = chunk.byte_offset + chunk.size_bytes - self._left
        try:
            source, rest = self._source(chunk.step), view
            while rest:
                count = os.preadv(source.fileno(), [rest], at)
                if not count:
                    raise CorruptCheckpoint(path, "ends while it is being read")
                rest, at = rest[count:], at + count
        except OSError as error:
            raise CorruptCheckpoint(path, f"cannot be read: {error.strerror or error}") from error
        self._digest.update(view)
        self._left -= len(view)
        self.position += len(view)
        if not self._left and (found := self._digest.hexdigest()) != chunk.xxh3:
            where = f"its {chunk.size_bytes:,} bytes from {chunk.byte_offset:,} on"
            raise CorruptCheckpoint(path, f"the xxh3-128 of {where} is {found}, not {chunk.xxh3}")

    def _source(self, step: int) -> FileIO:
        source = self._opened.get(step)
        if source is None:
            path, size_bytes = self._files[step]
            source = self._stack.enter_context(path.open("rb", buffering=0))
            found = os.fstat(source.fileno()).st_size
            if found != size_bytes:
                raise CorruptCheckpoint(
                    path, f"holds {found:,} bytes, {size_bytes:,} were committed"
                )
            self._opened[step] = source
        return source
