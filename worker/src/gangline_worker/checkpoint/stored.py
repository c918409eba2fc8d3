"""A committed checkpoint of the object store as a local folder, for reading it by hand."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from gangline_schemas.checkpoint import CommitRecord
from gangline_storage import NotFound, ObjectStore
from gangline_worker.checkpoint.files import CorruptCheckpoint
from gangline_worker.checkpoint.loader import COMMIT_FILE, Checkpoint


def bring(store: ObjectStore, place: str, below: Path) -> Checkpoint:
    """Copy the checkpoint at `place`, `.../attempt-NNNN/step-NNNNNNNNNN`, to a folder in `below`.

    Files that it refers to are copied too. Bytes are verified when they are read, not here.

    Raises:
        CorruptCheckpoint: the commit record is missing, it cannot be understood or names what lies
            elsewhere, or an object is missing.
        StoreError, InvalidKey, OSError: the store does not give it, or the disk does not take it.
    """
    where = PurePosixPath(place.strip("/"))
    record = below / where.name / COMMIT_FILE
    _copy(store, where / COMMIT_FILE, record)
    try:
        found = CommitRecord.decode(record.read_bytes())
    except ValidationError as error:
        raise CorruptCheckpoint(record, "is no CommitRecord") from error
    for digest in (*found.manifests, *found.shards, *(found.referred or ())):
        key = PurePosixPath(digest.key)
        if key.parent.parent != where.parent or ".." in key.parts:
            raise CorruptCheckpoint(record, f"names {digest.key!r}, which lies elsewhere")
        _copy(store, key, below / key.parent.name / key.name)
    return Checkpoint(record.parent)


def _copy(store: ObjectStore, key: PurePosixPath, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        store.fetch(str(key), path)
    except NotFound:
        raise CorruptCheckpoint(path, f"the store has no {key}") from None
