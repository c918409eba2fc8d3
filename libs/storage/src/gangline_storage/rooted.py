"""Directories below one root, opened part by part so that no symbolic link is ever followed."""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RootedTree:
    """Opens directories under `root` by descriptor.

    A path that is checked and then used as a string can be changed in between; a
    descriptor cannot. A symbolic link below the root is an error (NotADirectoryError).
    `stays`: once something is in it, a root that is another folder later is an error, too
    (ESTALE): a mount is gone, or came late.
    """

    def __init__(self, root: Path, *, stays: bool = False) -> None:
        self.root = root
        self._stays = stays
        # Without the device: an automounter that mounts again may give another one.
        self._inode: int | None = None

    @contextlib.contextmanager
    def directory(self, parts: Sequence[str], *, create: bool = False) -> Iterator[int]:
        """The directory's descriptor, for the length of the block.

        `create` makes missing directories and syncs them. Raises FileNotFoundError or
        NotADirectoryError.
        """
        fd = self._open_root(create=create)
        try:
            for part in parts:
                if create:
                    _make_directory(part, fd)
                below = os.open(part, _OPEN_DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    def _open_root(self, *, create: bool) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        if not self._stays:
            return os.open(self.root, flags)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            is_used = self._inode is None and (create or any(self.root.iterdir()))
            fd = os.open(self.root, flags)  # after the look: it may be what mounts the folder
            found = os.fstat(fd).st_ino
            if is_used:
                self._inode = found
            if self._inode in {None, found}:
                return fd
            os.close(fd)
        raise OSError(
            errno.ESTALE,
            f"{self.root} is another folder than at the start: mount it, or start again",
        )

    def remove_empty(self, parts: Sequence[str]) -> None:
        """Remove the directory and then its parents, as long as they are empty."""
        for depth in range(len(parts), 0, -1):
            try:
                with self.directory(parts[: depth - 1]) as fd:
                    os.rmdir(parts[depth - 1], dir_fd=fd)
            except OSError:
                return  # not empty, gone, or not ours to remove: all are as good


def _make_directory(name: str, parent_fd: int) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=parent_fd)
    except FileExistsError:
        return
    os.fsync(parent_fd)
