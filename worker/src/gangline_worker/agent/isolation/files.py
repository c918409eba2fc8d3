"""Files that an agent with all rights shares with ranks that have none.

The owner of a folder can put links into it at any time. So the agent never follows names there
with its own rights: it acts with those of the owner (`acting_as`), for which the system's checks
are the same as for the rank itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LIBC = ctypes.CDLL(None)
_ASK = ctypes.c_uint(0xFFFF_FFFF)  # no uid: changes nothing, gives the present one


class NotPlain(OSError):
    """A folder, a pipe or a device is in a file's place."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A team's user on this node; its group has the same number."""

    uid: int


@contextlib.contextmanager
def acting_as(owner: Owner | None) -> Iterator[None]:
    """Let this thread's file accesses have the rights of a team's user; None: its own.

    Raises PermissionError when the agent may not.
    """
    if owner is None:
        yield
        return
    _LIBC.setfsgid(owner.uid)
    _LIBC.setfsuid(owner.uid)
    try:
        if _LIBC.setfsuid(_ASK) != owner.uid:
            raise PermissionError(f"the agent may not act as user {owner.uid}")
        yield
    finally:
        _LIBC.setfsuid(os.geteuid())
        _LIBC.setfsgid(os.getegid())


def give(tree: Path, owner: Owner | None) -> None:
    """Make all of a tree, or one file, the owner's, its top last; links are not followed."""
    if owner is None:
        return
    walk = os.fwalk(tree, topdown=False, follow_symlinks=False) if tree.is_dir() else ()
    for _, folders, files, handle in walk:
        for name in (*folders, *files):
            os.chown(name, owner.uid, owner.uid, dir_fd=handle, follow_symlinks=False)
    os.chown(tree, owner.uid, owner.uid, follow_symlinks=False)


def listen_for(owner: Owner | None, path: Path, kind: socket.SocketKind) -> socket.socket:
    """Listen at a new Unix socket, without blocking, to which only the owner can connect.

    None: only the agent's user. Raises OSError.
    """
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, kind)
    listening.bind(str(path))
    path.chmod(0o600)
    give(path, owner)
    listening.listen(128)
    listening.setblocking(False)
    return listening


@contextlib.contextmanager
def opened_as(owner: Owner | None, path: Path) -> Iterator[Path]:
    """A name that means this very file, whatever is put in its place, if the owner may read it.

    Raises OSError, also for what is not a plain file.
    """
    if owner is None:
        if not stat.S_ISREG(path.stat().st_mode):
            raise NotPlain(f"{path} is no plain file")
        yield path
        return
    with acting_as(owner):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise NotPlain(f"{path} is no plain file")
        yield Path(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
