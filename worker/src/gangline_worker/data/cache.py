"""A folder of a node that keeps pieces of shards, shared by all its processes, up to a size.

Each shard is a sparse file of its full size, with holes where nothing was fetched. Whole files are
removed to make room, the longest unused first. A process that has such a file mapped still reads
from it, and notices when it writes or makes room itself. Only bytes that agree
with their checksum are written, so two writers of one block write the same.
"""

from __future__ import annotations

import contextlib
import os
import re
from io import FileIO
from pathlib import Path

from gangline_worker.data.manifest import XXH3_PATTERN

_CHECKED_PER_LIMIT = 16  # so far a process may go beyond the limit before it looks: a sixteenth


class CacheFolder:
    """Files of snapshots below `folder`, whose blocks on disk take about `limit_bytes` at most.

    Each snapshot has a folder by its digest. All else below `folder` is not the cache's: it is
    neither counted nor removed.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes
        self._unchecked_bytes = limit_bytes  # what others left here counts too
        self.is_over = False
        """Whether the file that was kept is larger than the limit by itself."""

    @property
    def due(self) -> bool:
        """Whether enough was written to look for room again."""
        return self._unchecked_bytes >= self._limit_bytes // _CHECKED_PER_LIMIT

    def place(self, snapshot: str, name: str) -> Path:
        """Where the file of a shard is, if there is one."""
        return self.folder / snapshot / name

    def file(self, snapshot: str, name: str, size_bytes: int) -> FileIO:
        """The file of a shard, open; made as one hole if there is none. Raises OSError.

        `snapshot` is the digest of the shard's snapshot. Another process may remove or replace the
        file at any time, so only its descriptor says which one this is.
        """
        path = self.place(snapshot, name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > size_bytes:
                path.unlink()
        file = FileIO(path, "rb", opener=_create)
        try:
            if os.fstat(file.fileno()).st_size < size_bytes:
                os.ftruncate(file.fileno(), size_bytes)
        except OSError:
            file.close()
            raise
        return file

    def write(self, path: Path, inode: int, start: int, data: bytes) -> bool:
        """Write into that very file; False if it was removed, or replaced by another.

        Raises:
            OSError: the disk is full, or cannot be written.
        """
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            if os.fstat(handle).st_ino != inode:
                return False
            rest = memoryview(data)
            while rest:
                written = os.pwrite(handle, rest, start)
                rest, start = rest[written:], start + written
        finally:
            os.close(handle)
        self._unchecked_bytes += len(data)
        return True

    def used(self, path: Path) -> None:
        """Note that a file is in use now."""
        with contextlib.suppress(OSError):
            os.utime(path)

    def make_room(self, keep: Path | None = None) -> dict[Path, int]:
        """Remove files until the limit is kept, never `keep`; inodes of what is left, by path."""
        self._unchecked_bytes = 0
        found: list[tuple[float, int, Path, int]] = []
        for path in self.folder.glob("*/*"):
            if not re.fullmatch(XXH3_PATTERN, path.parent.name):
                continue
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                found.append((stat.st_mtime, stat.st_blocks * 512, path, stat.st_ino))
        over = sum(size for _, size, _, _ in found) - self._limit_bytes
        left: dict[Path, int] = {}
        for _, size, path, inode in sorted(found):
            if over > 0 and size and path != keep:
                path.unlink(missing_ok=True)
                over -= size
            else:
                left[path] = inode
        self.is_over = over > 0
        return left


def _create(path: str, _: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
