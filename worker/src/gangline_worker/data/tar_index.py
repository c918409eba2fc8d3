"""Making a snapshot of tar files where they lie: they stay as they are, each gets an index.

1. Every `*.tar` of the place is read once, by name: its blocks are hashed, its headers are read.
2. Files that follow one another with the same key are one sample, as in WebDataset. The key is the
   path up to the first dot of the file's name; the rest is the file's extension in the sample.
3. `NAME.tar.idx` (the offset of each sample's first header) is put beside each, then the manifest.

Until then nothing is written, and a place that holds another snapshot is refused.
"""

from __future__ import annotations

import tarfile
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, cast

import numpy as np

from gangline_storage import Digest, NotFound, ObjectStore, digest_bytes
from gangline_worker.data.errors import DataError
from gangline_worker.data.manifest import (
    MANIFEST_FILE,
    OFFSET_TYPE,
    TAR_SUFFIX,
    OffsetIndex,
    TarManifest,
    TarShard,
    parse_any,
    tar_index_name,
)

_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class Indexed:
    """A snapshot, and how many of its files belong to no sample: their names have no extension."""

    manifest: TarManifest
    passed_over: int


@dataclass(frozen=True)
class _Samples:
    """Where the samples of a tar file begin, where the last one ends, and what is none."""

    starts: array[int]
    end: int
    passed_over: int


def split_name(name: str) -> tuple[str, str] | None:
    """The key and the extension of a file; None when it has no extension, so no sample has it."""
    folder, slash, file = name.rpartition("/")
    stem, _, extension = file.partition(".")
    return (folder + slash + stem, extension) if stem and extension else None


def index_tars(
    store: ObjectStore, corpus: str, *, block_bytes: int, on_progress: Callable[[str, int], None]
) -> Indexed:
    """Make, or make again, the snapshot of the tar files of a store (or a folder, which is one).

    `on_progress` is called with the file and its bytes read so far, now and then.

    Raises:
        DataError: there are no tar files, one cannot be read or has no samples, or another
            snapshot lies there.
        StoreError: the store does not answer, or nothing can be written.
    """
    names = [found.key for found in store.list() if found.key.endswith(TAR_SUFFIX)]
    names = sorted(name for name in names if "/" not in name)
    if not names:
        raise DataError(f"there are no *{TAR_SUFFIX} files; packed ones must be unpacked first")
    shards: list[TarShard] = []
    indexes: dict[str, bytes] = {}
    passed_over = 0
    for name in names:
        shard, samples = _read(store, name, block_bytes, on_progress)
        indexes[shard.samples.name] = _offsets(samples)
        passed_over += samples.passed_over
        shards.append(shard)
    manifest = TarManifest.of(corpus, block_bytes=block_bytes, shards=tuple(shards))
    _refuse_another(store, manifest)
    for name, offsets in indexes.items():
        store.put(name, offsets)
    store.put(MANIFEST_FILE, manifest.encode())
    return Indexed(manifest, passed_over)


def _refuse_another(store: ObjectStore, manifest: TarManifest) -> None:
    try:
        there = parse_any(store.get(MANIFEST_FILE), MANIFEST_FILE)
    except NotFound:
        return
    if there != manifest:
        raise DataError(
            f"it holds the snapshot {there.name}, and this is {manifest.name}; a snapshot never "
            "changes: put the files elsewhere, or give the same --name"
        )


def _offsets(samples: _Samples) -> bytes:
    return np.array(samples.starts, dtype=OFFSET_TYPE).tobytes()


class _HashedBytes:
    """The chunks of a file as tarfile reads them; each is one block, and hashed when it comes."""

    def __init__(self, chunks: Iterator[bytes], on_progress: Callable[[int], None]) -> None:
        self.whole = Digest()
        self.blocks: list[str] = []
        self.data_end = 0  # behind the last byte that is not 0
        self._chunks, self._on_progress = chunks, on_progress
        self._rest = b""

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer at the end."""
        parts = [self._rest[:size]]
        self._rest = self._rest[size:]
        missing = size - len(parts[0])
        while missing and (chunk := self._next()):
            parts.append(chunk[:missing])
            self._rest = chunk[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)

    def drain(self) -> None:
        """Read what is left."""
        while self._next():
            pass

    def _next(self) -> bytes:
        chunk = next(self._chunks, b"")
        if chunk:
            before = self.whole.size_bytes
            self.whole.update(chunk)
            self.blocks.append(digest_bytes(chunk))
            if used := len(chunk.rstrip(b"\0")):
                self.data_end = before + used
            self._on_progress(self.whole.size_bytes)
        return chunk


def _read(
    store: ObjectStore, name: str, block_bytes: int, on_progress: Callable[[str, int], None]
) -> tuple[TarShard, _Samples]:
    chunks = iter(store.stream(name, block_bytes))
    source = _HashedBytes(chunks, lambda done: on_progress(name, done))
    try:
        samples = _samples(name, source)
    except tarfile.TarError as error:
        raise DataError(
            f"{name}: cannot be read as a tar file ({error}); packed ones must be unpacked"
        ) from None
    source.drain()
    if source.data_end > samples.end:
        raise DataError(f"{name}: has bytes behind byte {samples.end:,} that are no tar entry")
    index = _offsets(samples)
    shard = TarShard(
        name=name,
        size_bytes=source.whole.size_bytes,
        xxh3=source.whole.hexdigest(),
        blocks=tuple(source.blocks),
        end=samples.end,
        samples=OffsetIndex(
            name=tar_index_name(name), count=len(samples.starts), xxh3=digest_bytes(index)
        ),
    )
    return shard, samples


def _samples(name: str, source: _HashedBytes) -> _Samples:
    starts = array("Q")
    end = passed_over = 0
    key, extensions = "", set[str]()
    with tarfile.open(
        fileobj=cast("IO[bytes]", source), mode="r|", bufsize=_BUFFER_BYTES
    ) as reader:
        while (member := reader.next()) is not None:
            reader.members.clear()  # type: ignore[attr-defined]  # it would keep all
            end = reader.offset
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                raise DataError(f"{name}: {member.name} is no plain file; leave it out")
            parts = split_name(member.name)
            if parts is None:
                passed_over += 1
                continue
            if not starts or parts[0] != key:
                starts.append(member.offset)
                key, extensions = parts[0], set()
            if parts[1] in extensions:
                raise DataError(f"{name}: the sample {key} has two files .{parts[1]}")
            extensions.add(parts[1])
    if not starts:
        raise DataError(f"{name}: has no samples: files named KEY.EXTENSION")
    return _Samples(starts, end, passed_over)
