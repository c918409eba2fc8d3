"""Whether the chunks that a rank's manifest names fill its file, and are those of earlier steps.

A chunk of an earlier step is right if the manifest of that step, verified when it was committed,
names the same bytes as its own. `service/own_bytes.py` hashes the chunks of the file itself.
"""

from __future__ import annotations

from collections.abc import Collection

from gangline_schemas.checkpoint import Chunk, RankManifest


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
