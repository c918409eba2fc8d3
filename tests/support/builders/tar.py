"""Small tar files for tests."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path


def entry(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info


def pack(path: Path, files: Iterable[tuple[str, bytes]], style: int = tarfile.USTAR_FORMAT) -> None:
    with tarfile.open(path, "w", format=style) as tar:
        for name, content in files:
            tar.addfile(entry(name, len(content)), io.BytesIO(content))
