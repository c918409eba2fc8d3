"""Run as a script: a container's process, in a mount namespace of its own.

`unshare --mount --pid --fork --kill-child python container.py ORDER` with ORDER as JSON:
`root`, an empty folder; `image`, the root of the image; `mounts`: `[source, target, read-only]`;
`folder`, where it begins; `user` and `group`, or null; `command`. The root has the image's own
folders, and new ones at /tmp, /run, /dev/shm and the targets of mounts.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

_BIND, _REC, _READ_ONLY, _REMOUNT = 4096, 16384, 1, 32
_LIBC = ctypes.CDLL(None, use_errno=True)
NEW = ("tmp", "run", "dev/shm")
"""Folders that are empty in each container."""


def mount(source: str, target: Path, kind: str = "", flags: int = 0) -> None:
    """Mount, as the system call does. Raises OSError."""
    given = (source.encode(), str(target).encode(), kind.encode() or None, flags, None)
    if _LIBC.mount(*given) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(target))


def bind(source: Path, target: Path, *, read_only: bool = False) -> None:
    """Show a file or folder at another place."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(str(source), target, flags=_BIND | _REC)
    if read_only:
        mount("", target, flags=_BIND | _REMOUNT | _READ_ONLY)


def enter(root: Path, image: Path, mounts: list[tuple[str, str, bool]]) -> None:
    """Build the root and change to it."""
    mount("tmpfs", root, "tmpfs")
    for each in image.iterdir():
        target = root / each.name
        if each.is_symlink():
            target.symlink_to(each.readlink())
        elif each.name not in NEW:
            bind(each, target)
    for name in NEW:
        (root / name).mkdir(parents=True, exist_ok=True)
        mount("tmpfs", root / name, "tmpfs")
    for source, place, read_only in mounts:
        inside = place.replace("/var/run/", "/run/").lstrip("/")  # a link out of the root elsewhere
        bind(Path(source), root / inside, read_only=read_only)
    mount("proc", root / "proc", "proc")
    os.chroot(root)


def main(order: dict[str, object]) -> None:
    """Become the container's command."""
    enter(Path(order["root"]), Path(order["image"]), order["mounts"])  # type: ignore[arg-type]
    os.chdir(str(order["folder"]))
    if order["group"] is not None:
        os.setgroups([])
        os.setgid(int(str(order["group"])))
    if order["user"] is not None:
        os.setuid(int(str(order["user"])))
    command: list[str] = order["command"]  # type: ignore[assignment]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
