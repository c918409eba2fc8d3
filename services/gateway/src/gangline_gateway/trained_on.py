"""The snapshot that a job was trained on: the one it names, or the input that is its data."""

from __future__ import annotations

import json

from gangline_gateway.problems import unavailable
from gangline_schemas.artifacts import (
    DATA_OF_INPUT,
    MAX_MANIFEST_BYTES,
    ArtifactManifest,
    manifest_key,
    object_key,
)
from gangline_schemas.data_use import named_by_content
from gangline_schemas.job import JobSpec
from gangline_storage import read_verified
from gangline_storage.errors import DamagedObject, NotFound, StoreError
from gangline_storage.port import ObjectStore

_MANIFEST = "manifest.json"
_MOST_BYTES = 64 << 20


def trained_on(store: ObjectStore | None, team: str, spec: JobSpec) -> str | None:
    """The snapshot's name; None: it has none, or the input is not a snapshot or is gone.

    Raises a 503 problem if the store does not answer.
    """
    source = spec.hyperparameters.get("data")
    named = spec.data_snapshot is not None
    if named or spec.artifacts is None or store is None or not isinstance(source, str):
        return spec.data_snapshot
    name = source.removeprefix(DATA_OF_INPUT)
    digest = None if name == source else spec.artifacts.inputs.get(name)
    if digest is None:
        return None
    try:
        return _named_in(store, team, digest)
    except (NotFound, DamagedObject):
        return None
    except StoreError as error:
        raise unavailable("store-away", f"the store: {type(error).__name__}") from None


def _named_in(store: ObjectStore, team: str, digest: str) -> str | None:
    """The name in the manifest of a snapshot that is an artifact. Raises StoreError."""
    raw = read_verified(store, manifest_key(team, digest), digest, MAX_MANIFEST_BYTES)
    for file in ArtifactManifest.decode(raw).files:
        if file.path == _MANIFEST:
            try:
                said = json.loads(
                    read_verified(store, object_key(team, file), file.xxh3, _MOST_BYTES)
                )
            except (ValueError, RecursionError):
                return None
            name = said.get("name") if isinstance(said, dict) else None
            return name if isinstance(name, str) and named_by_content(name) else None
    return None
