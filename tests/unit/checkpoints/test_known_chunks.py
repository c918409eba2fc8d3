"""What the service remembers of files that it verified, and how much."""

from __future__ import annotations

from gangline_checkpoints.service.known_chunks import KnownChunks
from gangline_schemas.checkpoint import Chunk
from gangline_schemas.events.workers import ObjectDigest


def manifest(name: str) -> ObjectDigest:
    return ObjectDigest(key=name, size_bytes=1, xxh3="0" * 32)


def chunks(count: int) -> tuple[Chunk, ...]:
    return tuple(
        Chunk(size_bytes=1, xxh3="0" * 32, step=0, byte_offset=index) for index in range(count)
    )


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    known = KnownChunks(limit=10)
    known.add(manifest("a"), chunks(4))
    known.add(manifest("b"), chunks(4))
    assert known.get(manifest("a")) == chunks(4)
    known.add(manifest("c"), chunks(4))
    assert [known.get(manifest(name)) is not None for name in "abc"] == [True, False, True]
    known.add(manifest("a"), chunks(5))
    assert [known.get(manifest(name)) is not None for name in "abc"] == [True, False, True]
    assert known.get(manifest("a").model_copy(update={"xxh3": "1" * 32})) is None
    known.add(manifest("d"), chunks(11))
    assert [known.get(manifest(name)) for name in "acd"] == [None, None, None]
