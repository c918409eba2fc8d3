"""Compares a rank's file with the chunks of its manifest as the file is read."""

from __future__ import annotations

from gangline_checkpoints.core.policy.chunks import own_chunks
from gangline_schemas.checkpoint import RankManifest
from gangline_storage import Digest


class OwnBytes:
    """Compares the bytes of a rank's file, fed in order, with the chunks of its manifest."""

    def __init__(self, manifest: RankManifest) -> None:
        self._left = list(reversed(own_chunks(manifest)))
        self._digest = Digest()
        self.problem: str | None = None

    def feed(self, data: bytes) -> None:
        """The next bytes of the file."""
        rest = memoryview(data)
        while self._left and rest:
            chunk = self._left[-1]
            part = rest[: chunk.size_bytes - self._digest.size_bytes]
            self._digest.update(part)
            rest = rest[len(part) :]
            if self._digest.size_bytes == chunk.size_bytes:
                if self._digest.hexdigest() != chunk.xxh3:
                    where = f"the {chunk.size_bytes} bytes at {chunk.byte_offset}"
                    self.problem = f"gives another digest of {where} of its file than theirs"
                self._left.pop()
                self._digest = Digest()
