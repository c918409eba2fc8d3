"""A real file system of a few bytes, to be filled to the last one."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_FILL_BYTES = 1024**3  # it is far smaller


class SmallDisk:
    """A disk below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        """To the last byte."""
        with self._filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            for _ in range(_FILL_BYTES // 4096):
                file.write(bytes(4096))

    def clear(self) -> None:
        """There is room again."""
        self._filler.unlink()


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[SmallDisk]:
    """Mount one in memory; the test is skipped where this user may not."""
    folder.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "gangline-test", str(folder)]
    if os.geteuid() or shutil.which("mount") is None:
        pytest.skip("only root mounts file systems")
    if (found := subprocess.run(command, capture_output=True, check=False)).returncode:
        pytest.skip(f"nothing can be mounted here: {found.stderr.decode().strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
