"""Chunks of files that were verified: what refers to them soon is compared without a request."""

from __future__ import annotations

import threading

from gangline_schemas.checkpoint import Chunk
from gangline_schemas.events.workers import ObjectDigest

LIMIT = 200_000
"""So many chunks are remembered, some 100 MB; what was used longest ago goes first."""


class KnownChunks:
    """By the digest of the manifest that names them. May be used by many threads."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._known: dict[ObjectDigest, tuple[Chunk, ...]] = {}
        self._count = 0
        self._lock = threading.Lock()

    def get(self, manifest: ObjectDigest) -> tuple[Chunk, ...] | None:
        """The chunks of its own file, if they are remembered."""
        with self._lock:
            found = self._known.pop(manifest, None)
            if found is not None:
                self._known[manifest] = found
            return found

    def add(self, manifest: ObjectDigest, chunks: tuple[Chunk, ...]) -> None:
        """These chunks were verified."""
        with self._lock:
            self._count += len(chunks) - len(self._known.pop(manifest, ()))
            self._known[manifest] = chunks
            while self._count > self._limit:
                self._count -= len(self._known.pop(next(iter(self._known))))
