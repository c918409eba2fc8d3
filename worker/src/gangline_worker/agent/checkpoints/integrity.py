"""Whether files of checkpoints are what they should be."""

from __future__ import annotations

from pathlib import Path

from gangline_schemas.events.workers import ObjectDigest
from gangline_storage.digest import digest_file
from gangline_worker.agent.isolation.files import NotPlain, Owner, opened_as


class CheckpointDamaged(Exception):
    """An object is not what its digest says; the message names it, `key` too if it is committed."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class WrongPath(Exception):
    """A rank named files that are not its own."""


def plain_file(root: Path, inner: str) -> Path:
    """A file below `root`, through no link. Raises WrongPath."""
    path = root / inner
    try:
        linked = path.is_symlink() or path.resolve() != root.resolve() / inner
    except RuntimeError:  # links in a circle
        linked = True
    if linked:
        raise WrongPath(f"{inner} is a link; checkpoints are plain files")
    return path


def damage_of(
    path: Path, digest: ObjectDigest, owner: Owner | None, *, read: bool = True
) -> str | None:
    """The difference of a file from its digest, or from its size alone; None when it agrees."""
    try:
        with opened_as(owner, path) as file:
            size_bytes = file.stat().st_size
            if size_bytes != digest.size_bytes:
                return f"holds {size_bytes:,} bytes, {digest.size_bytes:,} were committed"
            found = digest_file(file) if read else digest.xxh3
    except FileNotFoundError:
        return "is missing"
    except NotPlain:
        return "is no plain file"
    return None if found == digest.xxh3 else f"has xxh3-128 {found}, {digest.xxh3} was committed"
