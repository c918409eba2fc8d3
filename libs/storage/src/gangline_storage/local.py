"""An object store in a local directory: the key is the path below the root."""

import contextlib
import errno
import io
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from gangline_storage.durable import move, os_errors, replace_file, temporary_name, write_file
from gangline_storage.errors import AlreadyExists, InvalidKey, NotFound, StoreError
from gangline_storage.keys import TEMPORARY_PREFIX, check_delete_prefix, check_key, check_range
from gangline_storage.local_listing import list_tree
from gangline_storage.pace import Pace, paced
from gangline_storage.port import CHUNK_BYTES, ObjectInfo
from gangline_storage.rooted import RootedTree

_CREATE_ATTEMPTS = 20
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES)


T = TypeVar("T")


class LocalStore:
    """Objects as files of mode 0600 under `root`, which is created if it does not exist.

    A put writes a temporary file beside the object, syncs it and then gives it its name. It uses
    `rename`, or `link` for put-if-absent, which the file system lets only one writer win. Symbolic
    links below the root are not followed; for readers they do not exist.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_absolute():
            raise StoreError(f"root: {str(root)!r} is not absolute")
        with os_errors(f"root {root}"):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._tree = RootedTree(root.resolve(strict=True), stays=True)

    @property
    def root(self) -> Path:
        """The directory, with symbolic links of its own path resolved."""
        return self._tree.root

    def __repr__(self) -> str:
        """Where it is."""
        return f"LocalStore({str(self.root)!r})"

    def put(self, key: str, data: bytes | BinaryIO, *, if_absent: bool = False) -> ObjectInfo:
        """See ObjectStore.put."""
        check_key(key)
        if isinstance(data, bytes | bytearray | memoryview):
            whole = bytes(data)
            return self._put_chunks(key, lambda: (whole,), if_absent=if_absent)
        stream = data
        return self._put_chunks(key, lambda: _chunks_of(stream), if_absent=if_absent)

    def put_file(
        self,
        key: str,
        path: Path,
        *,
        if_absent: bool = False,
        link: bool = False,
        pace: Pace | None = None,
    ) -> ObjectInfo:
        """See ObjectStore.put_file."""
        check_key(key)
        with _open_source(path) as source:
            if link and self._link_in(key, path, source.fileno(), if_absent=if_absent):
                return ObjectInfo(key, os.fstat(source.fileno()).st_size)
            stream = source if pace is None else paced(source, pace)
            return self._put_chunks(key, lambda: _chunks_of(stream), if_absent=if_absent)

    def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        with self._opened(key) as file, os_errors(f"get {key}"):
            return file.read()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See ObjectStore.get_range."""
        check_range(start, length)
        with self._opened(key) as file, os_errors(f"get {key}"):
            file.seek(start)
            return file.read(length)

    def stream(
        self, key: str, chunk_bytes: int = CHUNK_BYTES, *, start: int = 0
    ) -> Iterator[bytes]:
        """See ObjectStore.stream."""
        if chunk_bytes < 1:
            raise ValueError(f"chunk_bytes must be at least 1: {chunk_bytes}")
        check_range(start, 0)
        file = self._opened(key)
        with os_errors(f"get {key}"):
            file.seek(start)
        return _read_and_close(file, chunk_bytes, what=f"get {key}")

    def fetch(self, key: str, path: Path, *, link: bool = False) -> ObjectInfo:
        """See ObjectStore.fetch."""
        with self._opened(key) as file, os_errors(f"fetch {key} to {path}"):
            info = ObjectInfo(key, os.fstat(file.fileno()).st_size)
            if not (link and _link_out(file.fileno(), path)):
                replace_file(path, _chunks_of(file))
            return info

    def head(self, key: str) -> ObjectInfo:
        """See ObjectStore.head."""
        with self._opened(key) as file:
            return ObjectInfo(key, os.fstat(file.fileno()).st_size)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See ObjectStore.list."""
        return list_tree(self._tree, prefix)

    def delete(self, key: str) -> None:
        """See ObjectStore.delete."""
        *folders, name = check_key(key).split("/")
        with os_errors(f"delete {key}"):
            try:
                with self._tree.directory(folders) as dir_fd:
                    os.unlink(name, dir_fd=dir_fd)
                    os.fsync(dir_fd)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return
        self._tree.remove_empty(folders)

    def delete_prefix(self, prefix: str) -> int:
        """See ObjectStore.delete_prefix."""
        keys = [info.key for info in self.list(check_delete_prefix(prefix))]
        for key in keys:
            self.delete(key)
        return len(keys)

    def remove_partial(self, *, older_than_s: float) -> int:
        """See ObjectStore.remove_partial."""
        removed = 0
        before = time.time() - older_than_s
        with os_errors(f"remove partial files in {self.root}"):
            for _, _, files, dir_fd in os.fwalk(self.root, follow_symlinks=False):
                for name in files:
                    if not name.startswith(TEMPORARY_PREFIX):
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        if os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mtime <= before:
                            os.unlink(name, dir_fd=dir_fd)
                            removed += 1
        return removed

    def _opened(self, key: str) -> BinaryIO:
        *folders, name = check_key(key).split("/")
        with os_errors(f"get {key}"):
            try:
                with self._tree.directory(folders) as dir_fd:
                    # O_NONBLOCK: opening a FIFO that a user put there must not wait for a writer.
                    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
                    fd = os.open(name, flags, dir_fd=dir_fd)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise NotFound(f"no object {key!r} in {self.root}") from None
                raise
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise NotFound(f"no object {key!r} in {self.root}")
        return os.fdopen(fd, "rb")

    def _put_chunks(
        self, key: str, chunks: Callable[[], Iterable[bytes]], *, if_absent: bool
    ) -> ObjectInfo:
        def write(dir_fd: int, name: str) -> int:
            temporary = temporary_name()
            size_bytes = write_file(temporary, chunks(), dir_fd=dir_fd)
            _name_it(temporary, name, dir_fd=dir_fd, if_absent=if_absent)
            return size_bytes

        return ObjectInfo(key, self._in_folder_of(key, write))

    def _link_in(self, key: str, path: Path, source_fd: int, *, if_absent: bool) -> bool:
        """Hard-link the open file at `path` under `key`; False where links cannot do it."""

        def link(dir_fd: int, name: str) -> bool:
            os.fsync(source_fd)
            temporary = temporary_name()
            try:
                os.link(path, temporary, dst_dir_fd=dir_fd, follow_symlinks=True)
            except OSError as error:
                if error.errno in _NO_LINK:
                    return False
                raise
            same = os.path.samestat(
                os.stat(temporary, dir_fd=dir_fd, follow_symlinks=False), os.fstat(source_fd)
            )
            if not same:
                os.unlink(temporary, dir_fd=dir_fd)
                raise StoreError(f"put {key}: {path} was replaced while it was linked")
            _name_it(temporary, name, dir_fd=dir_fd, if_absent=if_absent)
            return True

        return self._in_folder_of(key, link)

    def _in_folder_of(self, key: str, write: Callable[[int, str], T]) -> T:
        """Run `write(directory, name)` in the key's folder, made if need be, and sync it."""
        *folders, name = key.split("/")
        with os_errors(f"put {key}"):
            for attempt in range(1, _CREATE_ATTEMPTS + 1):
                try:
                    with self._tree.directory(folders, create=True) as dir_fd:
                        result = write(dir_fd, name)
                        os.fsync(dir_fd)
                        return result
                except NotADirectoryError:
                    raise InvalidKey(
                        f"key: {key!r} has a part that is an object or a symbolic link"
                    ) from None
                except FileNotFoundError:
                    # A delete emptied and removed the folder between its making and its use.
                    if attempt == _CREATE_ATTEMPTS:
                        raise
        raise AssertionError("unreachable")


def _name_it(temporary: str, name: str, *, dir_fd: int, if_absent: bool) -> None:
    """Give a finished file its name; the temporary name is gone in any case."""
    try:
        if not if_absent:
            move(temporary, name, dir_fd=dir_fd)
            return
        try:
            os.link(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)
        finally:
            os.unlink(temporary, dir_fd=dir_fd)
    except IsADirectoryError:
        raise InvalidKey(f"key: {name!r} is a folder of other keys") from None
    except FileExistsError:
        there = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        if not stat.S_ISREG(there.st_mode):
            raise InvalidKey(f"key: {name!r} is a folder of other keys or no file") from None
        raise AlreadyExists(f"{name!r} has an object already") from None


def _open_source(path: Path) -> io.BufferedReader:
    with os_errors(f"read {path}"):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise StoreError(f"read {path}: is not a regular file")
    return os.fdopen(fd, "rb")


def _link_out(fd: int, path: Path) -> bool:
    """Hard-link the open file to `path`, replacing; False where links cannot do it."""
    dir_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        temporary = temporary_name()
        try:
            os.link(f"/proc/self/fd/{fd}", temporary, dst_dir_fd=dir_fd, follow_symlinks=True)
        except OSError as error:
            if error.errno in (*_NO_LINK, errno.ENOENT):
                return False
            raise
        move(temporary, path.name, dir_fd=dir_fd)
        os.fsync(dir_fd)
        return True
    finally:
        os.close(dir_fd)


def _chunks_of(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _read_and_close(file: BinaryIO, chunk_bytes: int, *, what: str) -> Iterator[bytes]:
    with file, os_errors(what):
        while chunk := file.read(chunk_bytes):
            yield chunk
