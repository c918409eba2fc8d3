"""Whether the chunks of a rank's manifest are what it says: its own by their bytes, others by name.

A chunk of its own file is hashed as the file is read. One of an earlier step is right if the
manifest of that step, verified when it was committed, names the same bytes as its own.
"""

from __future__ import annotations

from collections.abc import Collection

from gangline_schemas.checkpoint import Chunk, RankManifest
from gangline_storage import Digest


def own_chunks(manifest: RankManifest) -> tuple[Chunk, ...]:
    """The chunks that lie in the manifest's own file."""
    return tuple(chunk for chunk in manifest.chunks or () if chunk.step == manifest.step)


def layout_problem(manifest: RankManifest) -> str | None:
    """The first error: own chunks must fill the file in order, others must be older; or None."""
    if manifest.chunks is None:
        return None
    end = 0
    for chunk in own_chunks(manifest):
        if chunk.byte_offset != end:
            return f"its chunk at {chunk.byte_offset} of its file does not begin at {end}"
        end += chunk.size_bytes
    if end != manifest.shard.size_bytes:
        return f"its chunks take {end} bytes of its file of {manifest.shard.size_bytes}"
    newer = [step for step in manifest.refers if step > manifest.step]
    return f"refers to step {newer[0]}, which is later" if newer else None


def reference_problem(manifest: RankManifest, there: Collection[Chunk]) -> str | None:
    """The first chunk of another step that is not among that step's own chunks; or None."""
    for chunk in manifest.chunks or ():
        if chunk.step != manifest.step and chunk not in there:
            return f"names bytes at {chunk.byte_offset} of step {chunk.step} that it did not write"
    return None


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
