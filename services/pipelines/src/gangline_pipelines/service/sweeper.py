"""Deletes the artifacts of a team that nothing needs: first their manifests, then their files."""

from __future__ import annotations

import structlog
from pydantic import ValidationError

from gangline_pipelines.core.model import Deleted, DeleteOutputs
from gangline_schemas.artifacts import (
    MAX_MANIFEST_BYTES,
    ArtifactManifest,
    artifacts_prefix,
    manifest_key,
    object_key,
)
from gangline_storage import DamagedObject, NotFound, ObjectStore, StoreError, read_verified

log = structlog.get_logger(__name__)


def delete_outputs(store: ObjectStore, wanted: DeleteOutputs) -> Deleted:
    """Cost: a listing of the team's artifacts, and the manifests that stay.

    If a manifest that stays cannot be read, no file is deleted: it may be one of its files.
    """
    artifacts = objects = size_bytes = 0
    prefix = artifacts_prefix(wanted.team)
    try:
        for key in [one.key for one in store.list(f"{prefix}/manifests/")]:
            if key.rpartition("/")[2].removesuffix(".json") not in wanted.keep:
                store.delete(key)
                artifacts += 1
        needed = _files(store, wanted)
        for one in [*store.list(f"{prefix}/objects/")]:
            if one.key not in needed:
                store.delete(one.key)
                objects += 1
                size_bytes += one.size_bytes
    except (StoreError, ValidationError) as error:
        problem = f"{type(error).__name__}: {error}"[:1000]
        log.warning("outputs are not all deleted", team=wanted.team, problem=problem)
        return Deleted(artifacts, objects, size_bytes, problem)
    log.info("outputs are deleted", team=wanted.team, artifacts=artifacts, bytes=size_bytes)
    return Deleted(artifacts, objects, size_bytes)


def _files(store: ObjectStore, wanted: DeleteOutputs) -> set[str]:
    """The keys of the files of all artifacts that stay. Raises StoreError and ValidationError."""
    found: set[str] = set()
    for digest in wanted.keep:
        key = manifest_key(wanted.team, digest)
        try:
            raw = read_verified(store, key, digest, MAX_MANIFEST_BYTES)
        except NotFound:
            continue  # a hit of the cache finds that out
        except DamagedObject as error:
            raise StoreError(f"{error}; a new run of its step replaces it") from None
        found |= {object_key(wanted.team, file) for file in ArtifactManifest.decode(raw).files}
    return found
