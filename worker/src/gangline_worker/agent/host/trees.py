"""Lists and deletes folders that users' programs filled, whatever these hold."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEPTH = 64


def entries(folder: Path) -> Iterator[Path]:
    """The content of a folder; nothing if it cannot be listed."""
    with contextlib.suppress(OSError):
        yield from folder.iterdir()


def delete_tree(top: Path) -> None:
    """Delete a folder and all in it; no link is followed, and what cannot be deleted stays.

    Folders that lie too deep are moved to the top: `shutil.rmtree` calls itself for each level.
    """
    with contextlib.suppress(OSError):
        handle = os.open(top, _OPEN_FOLDER)
        try:
            while _empty(handle, handle, 0):
                pass
        finally:
            os.close(handle)
        top.rmdir()


def _empty(folder: int, top: int, depth: int) -> int:
    """Delete what is in a folder; returns how many folders of it were moved to the top."""
    moved = 0
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            with contextlib.suppress(IsADirectoryError):
                os.unlink(name, dir_fd=folder)
                continue
            if depth == _DEPTH:
                os.rename(name, token_hex(16), src_dir_fd=folder, dst_dir_fd=top)
                moved += 1
                continue
            inner = os.open(name, _OPEN_FOLDER, dir_fd=folder)
            try:
                moved += _empty(inner, top, depth + 1)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=folder)
    return moved
