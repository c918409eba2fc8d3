"""Code bundles: a job's packed working directory, fetched, checked and unpacked."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

from gangline_schemas.checkpoint import code_key
from gangline_storage.port import ObjectStore
from gangline_worker.agent.checkpoints.old_copies import note_use

PACKED_LIMIT_BYTES = 512 * 1024 * 1024
UNPACKED_LIMIT_BYTES = 2 * 1024**3
FILES_LIMIT = 50_000


class BadBundle(Exception):
    """The bundle as it was submitted cannot be used; the message says why."""


def fetch_bundle(store: ObjectStore, team: str, digest: str, folder: Path) -> Path:
    """The packed bundle on this node's disk, its sha256 verified.

    Raises BadBundle when it is too large or not what was submitted; StoreError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{team}-{digest}.tar.gz"
    note_use(path)
    if path.exists() and _sha256(path) == digest:
        return path
    key = code_key(team, digest)
    if store.head(key).size_bytes > PACKED_LIMIT_BYTES:
        raise BadBundle(f"workdir: packs to more than {PACKED_LIMIT_BYTES >> 20} MiB; shrink it")
    store.fetch(key, path)
    if _sha256(path) != digest:
        path.unlink()
        raise BadBundle("workdir: the stored bundle differs from the submitted one; submit again")
    return path


def unpack(packed: Path, target: Path) -> None:
    """Unpack into an empty folder. Nothing leaves it: no absolute, '..', device or outer link.

    Raises BadBundle.
    """
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = size_bytes = 0
    try:
        with tarfile.open(packed, "r:gz") as archive:
            for member in archive:
                files += 1
                size_bytes += member.size
                if files > FILES_LIMIT or size_bytes > UNPACKED_LIMIT_BYTES:
                    raise BadBundle(
                        f"workdir: above {FILES_LIMIT:,} files or "
                        f"{UNPACKED_LIMIT_BYTES >> 30} GiB unpacked; list data in .gitignore"
                    )
                archive.extract(member, target, filter="data")
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise BadBundle(f"workdir: the bundle cannot be unpacked: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
