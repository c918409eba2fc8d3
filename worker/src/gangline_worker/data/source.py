"""Where a reader gets its bytes: a folder, or a store with a cache folder before it.

A source maps shards into memory and makes blocks of them right: `ensure` reads a block, checks it
against the manifest, and looks for another copy if it is not what it must be. `expect` says which
are needed next, so that a store is asked for several at a time. Everything here is used by one
thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO
from itertools import accumulate
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gangline_storage import NotFound, ObjectStore, digest_bytes
from gangline_worker.data.cache import CacheFolder
from gangline_worker.data.descriptors import allow_shards, refuse_shortage
from gangline_worker.data.errors import DataError, DataShardError
from gangline_worker.data.fetching import FETCHES, Fetching
from gangline_worker.data.in_memory import BlocksInMemory
from gangline_worker.data.manifest import (
    MANIFEST_FILE,
    OFFSET_TYPE,
    Manifest,
    ShardFile,
    SnapshotManifest,
    TarManifest,
    manifest_bytes,
    parse_any,
)

_INDEX_TRIES = 2
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_WAY_OUT = "free space there, lower data_cache_gb, or name another folder (data_cache)"
Mapped = NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32]


class Source(ABC):
    """Shards as memory maps, of which blocks are verified when they are first needed.

    `verified` has a 1 for each block of the snapshot, in order, that may be read from `mapped`,
    which has its shard then. `refetched` counts blocks that were read again because the first copy
    was damaged. `ahead`: how many blocks may be on their way at a time, see `expect`; 0: none.
    """

    ahead: ClassVar[int] = 0

    def __init__(self, manifest: SnapshotManifest) -> None:
        self.manifest = manifest
        self.refetched = 0
        self.mapped: dict[int, Mapped] = {}
        self._firsts = [0, *accumulate(len(shard.blocks) for shard in manifest.shards)]
        self.verified = np.zeros(self._firsts[-1], dtype=np.uint8)
        allow_shards(len(manifest.shards))

    def ensure(self, block: int) -> str | None:
        """Make a block, counted over all shards, right and verified; else what is wrong with it.

        Raises:
            DataShardError: its shard cannot be opened at all.
            DataError: the cache cannot be written, or too many files are open.
            StoreError: the store does not answer.
        """
        shard, within = self.place(block)
        wrong = self._ensure(shard, within)
        if wrong is None:
            self.verified[block] = 1
        return wrong

    def expect(self, blocks: Sequence[int]) -> None:
        """Say which blocks are needed next, in this order: a store begins to fetch them."""
        del blocks  # a folder has them

    def place(self, block: int) -> tuple[int, int]:
        """The shard of a block, and which of its blocks it is."""
        shard = bisect_right(self._firsts, block) - 1
        return shard, block - self._firsts[shard]

    def first_block(self, shard: int) -> int:
        """The first block of a shard, counted over all shards."""
        return self._firsts[shard]

    @abstractmethod
    def _ensure(self, shard: int, block: int) -> str | None: ...

    def _map(self, shard: int, file: Path | FileIO) -> None:
        """Map a file that has the shard's size; raises OSError."""
        mapped = np.memmap(file, dtype=self.manifest.item_type, mode="r")
        # A plain view of it: slices of the subclass cost several times as much.
        self.mapped[shard] = np.asarray(mapped)

    def _unmap(self, shard: int) -> None:
        self.verified[self._firsts[shard] : self._firsts[shard + 1]] = 0
        del self.mapped[shard]

    def _refuse_shortage(self, error: OSError) -> None:
        refuse_shortage(error, self.manifest.name, len(self.manifest.shards))

    def _check(self, shard: int, block: int, read: Callable[[], bytes]) -> str | None:
        """The error in the bytes that are read for a block; None when they agree."""
        try:
            data = read()
        except OSError as error:
            self._refuse_shortage(error)
            return f"cannot be read: {error.strerror}"
        except NotFound:
            return "is missing in the store"
        _, length = self.manifest.block_range(shard, block)
        if len(data) != length:
            return f"has {len(data):,} bytes, {length:,} are in the manifest"
        expected, found = self.manifest.shards[shard].blocks[block], digest_bytes(data)
        if found == expected:
            return None
        return f"its xxh3-128 is {found}, {expected} is in the manifest"


class FolderSource(Source):
    """A snapshot in a folder: local disk or a shared file system."""

    def __init__(self, folder: Path, manifest: SnapshotManifest) -> None:
        super().__init__(manifest)
        self._folder = folder

    def _ensure(self, shard: int, block: int) -> str | None:
        """Read the block; a second time from the disk itself if it is wrong."""
        path = self._folder / self.manifest.shards[shard].name
        if shard not in self.mapped:
            self._open(shard, path)
        start, length = self.manifest.block_range(shard, block)
        wrong = self._check(shard, block, lambda: read_at(path, start, length))
        if wrong is not None:
            self.refetched += 1
            with contextlib.suppress(OSError):
                forget_pages(path, start, length)
            wrong = self._check(shard, block, lambda: read_at(path, start, length))
        return wrong

    def _open(self, shard: int, path: Path) -> None:
        """Map a file, which must be as long as the manifest says: beyond its end is SIGBUS."""
        entry = self.manifest.shards[shard]
        try:
            size = path.stat().st_size
            if size == entry.size_bytes:
                self._map(shard, path)
        except OSError as error:
            self._refuse_shortage(error)
            raise DataShardError(entry.name, None, f"{path}: {error.strerror}") from error
        if size != entry.size_bytes:
            raise DataShardError(
                entry.name,
                None,
                f"{path} has {size:,} bytes, {entry.size_bytes:,} are in the manifest",
            )


class StoreSource(Source):
    """A snapshot in a store: blocks are fetched when they are first needed, and kept in a cache.

    Whether the cache has a block is known by its checksum alone, so neither a kill nor another
    process that fills the same cache can make it lie. If the cache's disk is full, this process
    keeps its next blocks in memory, and fetches them again when they are needed again.
    """

    ahead = FETCHES

    def __init__(self, store: ObjectStore, manifest: SnapshotManifest, cache: CacheFolder) -> None:
        super().__init__(manifest)
        self._store, self._cache = store, cache
        self._fetching = Fetching(store)
        self._files: dict[int, tuple[Path, int]] = {}  # path and inode of what is mapped
        self._memory: BlocksInMemory | None = None  # in place of files

    def _ensure(self, shard: int, block: int) -> str | None:
        """As promised above; the cache's own errors say the way out."""
        try:
            if self._memory is None:
                return self._from_cache_or_store(shard, block)
        except OSError as error:
            self._refuse_shortage(error)
            if error.errno not in _FULL:
                raise DataError(
                    f"data cache {self._cache.folder}: {error.strerror}; {_WAY_OUT}"
                ) from error
            self._memory = self._do_without_disk(error)
        return self._through_memory(self._memory, shard, block)

    def _do_without_disk(self, error: OSError) -> BlocksInMemory:
        sys.stderr.write(
            f"data cache {self._cache.folder}: {error.strerror}; from now on blocks are fetched "
            f"whenever they are needed, which may be slower; {_WAY_OUT}\n"
        )
        sys.stderr.flush()
        for shard in list(self._files):
            self._forget(shard)
        return BlocksInMemory()

    def expect(self, blocks: Sequence[int]) -> None:
        """Begin to fetch those that the cache has not; the rest of it is noticed by `ensure`."""
        self._fetching.keep(set(blocks))
        if self._memory is not None:
            self.verified[self._memory.drop_old(set(blocks))] = 0
        elif self._cache.is_over:  # no sample is being read that needs what is mapped
            self._forget_all_but(self._cache.make_room())
        for block in blocks:
            if self._fetching.is_full:
                return
            if not self.verified[block] and block not in self._fetching:
                self._begin(block)

    def _begin(self, block: int) -> None:
        shard, within = self.place(block)
        start, length = self.manifest.block_range(shard, within)
        with contextlib.suppress(OSError):
            name = self.manifest.shards[shard].name
            path = self._cache.place(self.manifest.digest, name)
            if self._memory is None:
                path, _ = self._files.get(shard) or self._open(shard)
            if not path.exists() or _is_hole(path, start, length):
                self._fetching.begin(block, name, start, length)

    def _from_cache_or_store(self, shard: int, block: int) -> str | None:
        """Take the block from the cache if it is right there, else from the store, twice."""
        path, inode = self._files.get(shard) or self._open(shard)
        start, length = self.manifest.block_range(shard, block)
        cached = _cached(path, inode, start, length)
        if self._check(shard, block, lambda: cached) is None:
            self._cache.used(path)
            return None
        if cached.count(0) != len(cached):  # a hole was never fetched, all else is damaged
            self.refetched += 1
        data, wrong = self._fetched(shard, block)
        if wrong is None:
            self._keep(shard, start, data)
        return wrong

    def _through_memory(self, memory: BlocksInMemory, shard: int, block: int) -> str | None:
        """The same, with what the cache has, and without writing there."""
        entry = self.manifest.shards[shard]
        start, length = self.manifest.block_range(shard, block)
        if shard not in self.mapped:
            whole = memory.shard(shard, entry.size_bytes)
            self.mapped[shard] = np.frombuffer(whole, dtype=self.manifest.item_type)
        data = b""
        with contextlib.suppress(OSError):
            data = read_at(self._cache.place(self.manifest.digest, entry.name), start, length)
        if digest_bytes(data) != entry.blocks[block]:
            data, wrong = self._fetched(shard, block)
            if wrong is not None:
                return wrong
        memory.put(self.first_block(shard) + block, shard, start, data)
        return None

    def _fetched(self, shard: int, block: int) -> tuple[bytes, str | None]:
        """A block of the store, asked for once more if it is wrong, and what is wrong then."""
        name = self.manifest.shards[shard].name
        start, length = self.manifest.block_range(shard, block)
        data = b""

        def fetch() -> bytes:
            nonlocal data
            coming = self._fetching.take(self.first_block(shard) + block)
            data = self._store.get_range(name, start, length) if coming is None else coming
            return data

        wrong = self._check(shard, block, fetch)
        if wrong is not None:
            self.refetched += 1
            wrong = self._check(shard, block, fetch)
        return data, wrong

    def _open(self, shard: int) -> tuple[Path, int]:
        """Map the shard's file in the cache, which has holes where nothing was fetched yet."""
        entry = self.manifest.shards[shard]
        with self._cache.file(self.manifest.digest, entry.name, entry.size_bytes) as file:
            self._map(shard, file)
            self._files[shard] = Path(str(file.name)), os.fstat(file.fileno()).st_ino
        return self._files[shard]

    def _keep(self, shard: int, start: int, data: bytes) -> None:
        """Write a right block into the file that is mapped, and make room if that is due."""
        path, inode = self._files[shard]
        while not self._cache.write(path, inode, start, data):
            self._forget(shard)  # another process made room: what was mapped has no name now
            path, inode = self._open(shard)
        if self._cache.due:
            self._forget_all_but(self._cache.make_room(keep=path))

    def _forget_all_but(self, left: dict[Path, int]) -> None:
        """Unmap the files that are no longer in the cache, given the inodes of those that are."""
        for shard, (place, mapped) in list(self._files.items()):
            if left.get(place) != mapped:
                self._forget(shard)

    def _forget(self, shard: int) -> None:
        self._unmap(shard)
        del self._files[shard]


def offsets_of(shard: ShardFile, read: Callable[[str], bytes]) -> NDArray[np.uint64]:
    """The offsets of a shard's index, read again once if they are damaged.

    Raises:
        DataShardError: they stay damaged.
        OSError, StoreError: as `read`.
    """
    for _ in range(_INDEX_TRIES):
        raw = read(shard.index.name)
        if digest_bytes(raw) == shard.index.xxh3:
            return np.frombuffer(raw, dtype=OFFSET_TYPE)
    reason = f"its index {shard.index.name} holds other bytes; a sound copy makes it whole again"
    raise DataShardError(shard.name, None, reason)


@dataclass(frozen=True)
class Snapshot:
    """An opened snapshot; `read` gives a small file of it, and raises OSError or StoreError."""

    manifest: Manifest | TarManifest
    source: Source
    read: Callable[[str], bytes]


def folder_snapshot(folder: Path) -> Snapshot:
    """A snapshot in a folder. Raises DataError."""
    manifest = parse_any(manifest_bytes(folder), str(folder / MANIFEST_FILE))
    source = FolderSource(folder, manifest)
    return Snapshot(manifest, source, lambda name: (folder / name).read_bytes())


def store_snapshot(store: ObjectStore, cache: CacheFolder) -> Snapshot:
    """A snapshot in a store, read through a cache.

    Raises:
        DataError: the store has no manifest, or a damaged one.
        StoreError: the store does not answer.
    """
    try:
        raw = store.get(MANIFEST_FILE)
    except NotFound:
        raise DataError(f"data: the store has no {MANIFEST_FILE} there") from None
    manifest = parse_any(raw, f"data: {MANIFEST_FILE}")
    return Snapshot(manifest, StoreSource(store, manifest, cache), store.get)


def _cached(path: Path, inode: int, start: int, length: int) -> bytes:
    """The bytes of the cache there; none if another file is mapped by now."""
    with contextlib.suppress(OSError):
        data = read_at(path, start, length)
        if path.stat().st_ino == inode:
            return data
    return b""


def _is_hole(path: Path, start: int, length: int) -> bool:
    """Whether nothing was ever written there. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        try:
            return os.lseek(file.fileno(), start, os.SEEK_DATA) >= start + length
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data up to the end
                return True
            raise


def read_at(path: Path, start: int, length: int) -> bytes:
    """Bytes of a file, fewer at its end. Raises OSError, where a map would raise SIGBUS."""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        parts = []
        while length and (part := file.read(length)):
            parts.append(part)
            length -= len(part)
    return b"".join(parts)


def forget_pages(path: Path, start: int, length: int) -> None:
    """Drop the kernel's copy of a range, so that the next read asks the disk. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), start, length, os.POSIX_FADV_DONTNEED)
