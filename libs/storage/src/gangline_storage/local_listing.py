"""Lists a directory tree in the order of its keys, one directory in memory at a time."""

import os
import stat
from collections.abc import Iterator, Sequence

from gangline_storage.durable import os_errors
from gangline_storage.keys import TEMPORARY_PREFIX, check_prefix
from gangline_storage.port import ObjectInfo
from gangline_storage.rooted import RootedTree


def list_tree(tree: RootedTree, prefix: str) -> Iterator[ObjectInfo]:
    """The objects below the tree's root whose key begins with `prefix`. Raises InvalidKey."""
    check_prefix(prefix)
    return _walk(tree, tuple(prefix.split("/")[:-1]), prefix)


def _walk(tree: RootedTree, folders: tuple[str, ...], prefix: str) -> Iterator[ObjectInfo]:
    base = "".join(f"{part}/" for part in folders)
    for name, size_bytes in _entries(tree, folders):
        path = base + name
        if name.endswith("/"):
            if path.startswith(prefix) or prefix.startswith(path):
                yield from _walk(tree, (*folders, name[:-1]), prefix)
        elif path.startswith(prefix):
            yield ObjectInfo(path, size_bytes)


def _entries(tree: RootedTree, folders: Sequence[str]) -> list[tuple[str, int]]:
    """Files with their sizes and directories (their name ends with '/'), in the order of keys.

    That is the order of the bytes of their UTF-8 form, as S3 lists.
    """
    found: list[tuple[str, int]] = []
    with os_errors(f"list {tree.root}/{'/'.join(folders)}"):
        try:
            with tree.directory(folders) as dir_fd, os.scandir(dir_fd) as entries:
                for entry in entries:
                    if entry.name.startswith(TEMPORARY_PREFIX) or not _is_utf8(entry.name):
                        continue
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # deleted since the directory was read
                    if stat.S_ISDIR(status.st_mode):
                        found.append((f"{entry.name}/", 0))
                    elif stat.S_ISREG(status.st_mode):
                        found.append((entry.name, status.st_size))
        except (FileNotFoundError, NotADirectoryError):
            return []
    return sorted(found, key=lambda item: item[0].encode())


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
