"""Caches of data in stores for a team's jobs on this node, from one attempt to the next.

Each team has a folder, its user's alone, which its ranks find as `GANGLINE_DATA_CACHE`. How much
one holds is for its readers to heed (`gangline_worker.data.cache`). This module keeps room on the
disk beside the caches of many teams: before a gang starts, it deletes the longest unused files. A
rank that reads such a file reads it to its end, and fetches it again when it needs it again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from gangline_worker.agent.isolation.files import Owner, acting_as

FREE_SHARE = 0.1
"""So much of the disk is left free."""


def disk(folder: Path) -> tuple[int, int]:
    """All bytes of its disk, and those that are free. Raises OSError."""
    usage = shutil.disk_usage(folder)
    return usage.total, usage.free


class DataCaches:
    """The caches of all teams on this node, below `folder`. May be used by many threads."""

    def __init__(self, folder: Path, disk: Callable[[Path], tuple[int, int]] = disk) -> None:
        """Raises OSError."""
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        folder.chmod(0o711)  # the folders below are those of teams, each its owner's alone
        self._folder = folder
        self._disk = disk
        self._lock = threading.Lock()

    def of(self, team: str, owner: Owner | None) -> Path:
        """The folder of a team, with room on its disk. Raises OSError."""
        with self._lock:
            path = self._folder / team
            wanted = os.geteuid() if owner is None else owner.uid
            foreign = path.exists() and path.stat().st_uid != wanted
            if foreign and any(path.iterdir()):  # the isolation was another one
                shutil.rmtree(path)
            path.mkdir(mode=0o700, exist_ok=True)
            if owner is not None:
                os.chown(path, owner.uid, owner.uid, follow_symlinks=False)
            self._make_room()
        return path

    def _make_room(self) -> None:
        total, free = self._disk(self._folder)
        missing = total * FREE_SHARE - free
        if missing <= 0:
            return
        found = [
            (used_at, size, path, owner)
            for team in self._folder.iterdir()
            for owner in [_owner_of(team)]
            for used_at, size, path in _files(team, owner)
        ]
        for _, size, path, owner in sorted(found, key=lambda file: file[0]):
            with contextlib.suppress(OSError), acting_as(owner):
                path.unlink()
                missing -= size
            if missing <= 0:
                return


def _owner_of(team: Path) -> Owner | None:
    uid = team.stat(follow_symlinks=False).st_uid
    return None if uid == os.geteuid() else Owner(uid)


def _files(team: Path, owner: Owner | None) -> Sequence[tuple[float, int, Path]]:
    """When each shard's file was used last, its bytes on disk, its name. No link is followed."""
    found = []
    with contextlib.suppress(OSError), acting_as(owner):
        snapshots = [entry for entry in os.scandir(team) if entry.is_dir(follow_symlinks=False)]
        for entry in itertools.chain.from_iterable(map(os.scandir, snapshots)):
            stat = entry.stat(follow_symlinks=False)
            found.append((stat.st_mtime, stat.st_blocks * 512, Path(entry.path)))
    return found
