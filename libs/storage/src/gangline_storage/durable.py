"""Files that are there whole and on disk, or not at all."""

import contextlib
import errno
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from gangline_storage.errors import StoreError, StoreFull
from gangline_storage.keys import TEMPORARY_PREFIX

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The errors of a disk that takes no more bytes."""


def temporary_name() -> str:
    """A name that no key and no other writer uses."""
    return f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write every byte: a full disk makes `os.write` stop short before it raises."""
    view = memoryview(data).cast("B")
    while view.nbytes:
        view = view[os.write(fd, view) :]


def write_file(name: str, chunks: Iterable[bytes], *, dir_fd: int) -> int:
    """Create `name` in the open directory with the chunks, synced to disk; return its size.

    On any error the file is gone again. The directory itself is not synced.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=dir_fd)
    try:
        size_bytes = 0
        for chunk in chunks:
            write_all(fd, chunk)
            size_bytes += len(chunk)
        os.fsync(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=dir_fd)
        raise
    finally:
        os.close(fd)
    return size_bytes


def replace_file(path: Path, chunks: Iterable[bytes]) -> int:
    """Make `path` hold exactly the chunks, atomically and synced to disk; return its size."""
    dir_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        temporary = temporary_name()
        size_bytes = write_file(temporary, chunks, dir_fd=dir_fd)
        move(temporary, path.name, dir_fd=dir_fd)
        os.fsync(dir_fd)
    finally:
        os.close(dir_fd)
    return size_bytes


def move(temporary: str, name: str, *, dir_fd: int) -> None:
    """Rename within one directory, replacing; the temporary name is gone in any case."""
    try:
        os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    finally:
        # A rename over another link to the same file does nothing and keeps both names.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=dir_fd)


@contextlib.contextmanager
def os_errors(what: str) -> Iterator[None]:
    """Turn an OSError of the block into StoreFull or StoreError that says what was tried."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise StoreFull(
                f"{what}: no room ({error.strerror}); nothing was kept. "
                "Free space, raise the quota, or point the store elsewhere"
            ) from error
        raise StoreError(f"{what}: {error.strerror or error}") from error
