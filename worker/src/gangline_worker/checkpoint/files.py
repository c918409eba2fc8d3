"""Writing and reading files of which every byte is hashed on its way."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from itertools import chain
from mmap import PAGESIZE
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import xxhash

from gangline_schemas.events.workers import ObjectDigest
from gangline_storage.durable import write_all

WRITE_BYTES = 32 << 20  # at once; the memory is filled further while the disk takes them
WORTH_IT_BYTES = 1 << 20  # below, a plain write is as quick as one past the page cache
READ_CHUNK_BYTES = 1 << 20  # hashed while the core's own cache has it; each call has its cost too


class CorruptCheckpoint(Exception):
    """A checkpoint does not hold what its commit record promises; `path` says which file."""

    def __init__(self, path: Path, reason: str) -> None:
        """Name the file and what is wrong with it."""
        super().__init__(f"corrupt checkpoint: {path}: {reason}")
        self.path = path
        self.reason = reason


class Filling:
    """Memory that one thread fills, from its start to its end, while another writes it to a file.

    Filled memory is hashed at once, while the CPU's cache has it.
    """

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._digest = xxhash.xxh3_128()
        self._hashed = 0
        self._ends: SimpleQueue[int | Exception] = SimpleQueue()

    def filled(self, end: int) -> None:
        """All bytes up to `end` are as they are to be written."""
        self._digest.update(self.data[self._hashed : end])
        self._hashed = end
        self._ends.put(end)

    def fill_up(self) -> None:
        """It was full before; only hash it, in parts that are written meanwhile."""
        for end in range(WRITE_BYTES, len(self.data), WRITE_BYTES):
            self.filled(end)
        self.filled(len(self.data))

    def fail(self, error: Exception) -> None:
        """The rest will not come; the thread that waits for it gets this error."""
        self._ends.put(error)

    def hexdigest(self) -> str:
        """The xxh3-128 of all bytes, once they are filled."""
        return self._digest.hexdigest()

    def ends(self) -> Iterator[int]:
        """To where it is filled, each time that it is further; the last is the end of all."""
        end = 0
        while end < len(self.data):
            found = self._ends.get()
            if isinstance(found, Exception):
                raise found
            end = found
            yield end


def write_synced(path: Path, data: memoryview, key: str) -> ObjectDigest:
    """Write a file so that under its name it is whole and on disk, or not there at all.

    The folder's entry is synced too. Raises OSError (no space, ...) and leaves nothing behind.
    """
    filling = Filling(data)
    filling.filled(len(data))
    return write_filling(path, filling, key)


def write_filling(path: Path, filling: Filling, key: str) -> ObjectDigest:
    """As `write_synced`, of memory that is being filled: each `WRITE_BYTES` once they are there.

    Raises what `filling` fails with, too.
    """
    data, written = filling.data, 0
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        target = os.open(partial, flags, 0o600)
        try:
            with past_page_cache(target, data):
                for end in filling.ends():
                    if end == len(data) or end - written >= WRITE_BYTES:
                        pages = end // PAGESIZE * PAGESIZE
                        write_all(target, data[written:pages])
                        written = pages
            write_all(target, data[written:])
            os.fsync(target)
        finally:
            os.close(target)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)
    return ObjectDigest(key=key, size_bytes=len(data), xxh3=filling.hexdigest())


def make_folder(path: Path) -> None:
    """Make a folder and those above it, for this user alone; their names survive a loss of power.

    Not where the folder above is one that this user may not read. Raises OSError.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(PermissionError):
            sync(folder.parent)


def sync(path: Path) -> None:
    """Make the bytes of a file, or the names in a folder, survive a loss of power."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def past_page_cache(target: int, data: memoryview) -> Iterator[None]:
    """Within it, writes of whole pages of `data` to a new file go past the page cache.

    A plain write copies each byte once more, and the kernel's limits on dirty pages slow a large
    one down. Both cost the training that runs beside it.

    Not where that is impossible (memory that does not begin with a page or that the disk may not
    read, a file system without direct writes) or not worth it: they are plain ones then.
    """
    flags = fcntl.fcntl(target, fcntl.F_GETFL)
    if len(data) >= WORTH_IT_BYTES and not np.frombuffer(data, np.uint8).ctypes.data % PAGESIZE:
        try:
            fcntl.fcntl(target, fcntl.F_SETFL, flags | os.O_DIRECT)
            os.pwrite(target, data[:PAGESIZE], 0)  # some say so only now; it is overwritten
        except OSError:  # not here; if the disk is full, the next write will say so
            fcntl.fcntl(target, fcntl.F_SETFL, flags)
    try:
        yield
    finally:
        fcntl.fcntl(target, fcntl.F_SETFL, flags)


def read_verified(path: Path, expected: ObjectDigest) -> memoryview:
    """Read a whole file, hashing what is read.

    Raises:
        CorruptCheckpoint: the file is missing, shorter, longer, or its bytes are others.
    """
    data = memoryview(bytearray(expected.size_bytes))
    read_pieces(path, expected, [(0, data)])
    return data


def read_pieces(
    path: Path, expected: ObjectDigest, pieces: Iterable[tuple[int, memoryview]]
) -> None:
    """Read a whole file once, hashing all of it; the bytes from each offset fill that view.

    Offsets ascend and pieces do not overlap. The next piece is asked for when the one before is
    filled. Whether the bytes are right is known at the end alone: after an error the views hold
    anything.

    Raises:
        CorruptCheckpoint: the file is missing, shorter, longer, or its bytes are others.
        ValueError: the pieces are out of order.
    """
    try:
        with path.open("rb", buffering=0) as source:
            size = os.fstat(source.fileno()).st_size
            if size != expected.size_bytes:
                raise CorruptCheckpoint(
                    path, f"holds {size:,} bytes, {expected.size_bytes:,} were committed"
                )
            found = _read_hashing(path, source, size, pieces)
    except OSError as error:
        raise CorruptCheckpoint(path, f"cannot be read: {error.strerror or error}") from error
    if found != expected.xxh3:
        raise CorruptCheckpoint(path, f"its xxh3-128 is {found}, {expected.xxh3} was committed")


class _HashingReader:
    """Reads a file from its start to its end, hashing each piece while the CPU's cache has it."""

    def __init__(self, path: Path, source: FileIO) -> None:
        self.digest = xxhash.xxh3_128()
        self.position = 0
        self._path = path
        self._source = source

    def fill(self, view: memoryview) -> None:
        """Read the next bytes into all of `view`."""
        for start in range(0, len(view), READ_CHUNK_BYTES):
            part = rest = view[start : start + READ_CHUNK_BYTES]
            while rest:
                count = self._source.readinto(rest)
                if not count:
                    raise CorruptCheckpoint(self._path, "ends while it is being read")
                rest = rest[count:]
            self.digest.update(part)
            self.position += len(part)


def _read_hashing(
    path: Path, source: FileIO, size: int, pieces: Iterable[tuple[int, memoryview]]
) -> str:
    reader = _HashingReader(path, source)
    unused = memoryview(bytearray(0))
    for offset, view in chain(pieces, [(size, memoryview(b""))]):
        if offset < reader.position:
            raise ValueError(f"{path}: the piece at {offset:,} begins before {reader.position:,}")
        while reader.position < offset:
            if not unused:
                unused = memoryview(bytearray(READ_CHUNK_BYTES))
            reader.fill(unused[: offset - reader.position])
        reader.fill(view)
    return reader.digest.hexdigest()
