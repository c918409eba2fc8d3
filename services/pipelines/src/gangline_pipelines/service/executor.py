"""Executes effects: sees whether outputs of hits are in the store and whole; deletes others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import structlog
from pydantic import ValidationError

from gangline_pipelines.core.model import Checked, CheckOutputs, Deleted, DeleteOutputs, StoreAway
from gangline_pipelines.service.sweeper import delete_outputs
from gangline_schemas.artifacts import (
    MAX_MANIFEST_BYTES,
    ArtifactFile,
    ArtifactManifest,
    manifest_key,
    object_key,
)
from gangline_storage import (
    DamagedObject,
    Digest,
    InvalidKey,
    NotFound,
    ObjectStore,
    StoreError,
    read_verified,
)

log = structlog.get_logger(__name__)
_AT_ONCE = 16
_CHUNK_BYTES = 8 << 20


class OutputChecker:
    """Executes the effects of `PipelineDecider`; safe to call from several threads.

    An artifact counts as missing if its manifest or a file is missing or damaged. Files are read
    if the artifact has at most `read_bytes`; of larger ones only the sizes are compared.
    """

    def __init__(self, store: ObjectStore, *, read_bytes: int) -> None:
        self._store = store
        self._read_bytes = read_bytes
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="check")

    def __call__(self, key: str, effect: object) -> Checked | StoreAway | Deleted:
        """The artifacts that are missing, or that the store is away; what a sweep deleted."""
        if isinstance(effect, DeleteOutputs):
            return delete_outputs(self._store, effect)
        if not isinstance(effect, CheckOutputs):
            raise TypeError(f"{key}: {type(effect).__name__} is no effect of pipelines")
        try:
            whole = [*self._pool.map(partial(self._is_whole, effect.team), effect.digests)]
            there = [*self._pool.map(self._is_there, effect.saves)]
        except StoreError as error:
            return StoreAway(f"{type(error).__name__}: {error}"[:1000])
        pairs = zip(effect.digests, whole, strict=True)
        missing = tuple(digest for digest, sound in pairs if not sound)
        gone = tuple(key for key, here in zip(effect.saves, there, strict=True) if not here)
        if missing or gone:
            log.warning(
                "outputs are missing", team=effect.team, digests=missing[:10], saves=gone[:10]
            )
        return Checked(missing, gone)

    def _is_there(self, key: str) -> bool:
        """Whether an object is in the store. Raises StoreError if the store is away."""
        try:
            self._store.head(key)
        except (NotFound, InvalidKey):
            return False
        return True

    def _is_whole(self, team: str, digest: str) -> bool:
        """Whether an artifact is there as it was stored. Raises StoreError if the store is away."""
        key = manifest_key(team, digest)
        try:
            raw = read_verified(self._store, key, digest, MAX_MANIFEST_BYTES)
            manifest = ArtifactManifest.decode(raw)
            size = sum(file.size_bytes for file in manifest.files)
            read = size <= self._read_bytes
            return all(self._is_sound(team, file, read=read) for file in manifest.files)
        except (NotFound, InvalidKey, DamagedObject, ValidationError):
            return False

    def _is_sound(self, team: str, file: ArtifactFile, *, read: bool) -> bool:
        key = object_key(team, file)
        if not read:
            return self._store.head(key).size_bytes == file.size_bytes
        found = Digest()
        for part in self._store.stream(key, _CHUNK_BYTES):
            found.update(part)
        return found.hexdigest() == file.xxh3


def share_of(effect: object) -> str:
    """The team of an effect."""
    return effect.team if isinstance(effect, CheckOutputs | DeleteOutputs) else ""
