"""Reading a whole snapshot back: every shard, every block, every offset of its indexes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gangline_storage import Digest, NotFound, ObjectStore, digest_bytes
from gangline_worker.data.manifest import OFFSET_TYPE, ShardFile, SnapshotManifest


@dataclass(frozen=True)
class Damage:
    """One place that does not hold what the manifest says; no block: the whole file."""

    file: str
    block: int | None
    reason: str


def verify(
    store: ObjectStore, manifest: SnapshotManifest, on_progress: Callable[[int], None] | None = None
) -> list[Damage]:
    """All damage of a snapshot in a store (or a folder, which is one).

    `on_progress` is called with the number of bytes read so far after each block.

    Raises:
        StoreError: the store does not answer.
    """
    found: list[Damage] = []
    done = 0
    for shard in manifest.shards:
        found.extend(_shard(store, manifest, shard, done, on_progress))
        found.extend(_offsets(store, shard))
        done += shard.size_bytes
    return found


def _shard(
    store: ObjectStore,
    manifest: SnapshotManifest,
    shard: ShardFile,
    before: int,
    on_progress: Callable[[int], None] | None,
) -> list[Damage]:
    found: list[Damage] = []
    whole, blocks = Digest(), 0
    try:
        for block in store.stream(shard.name, manifest.block_bytes):
            whole.update(block)
            if blocks < len(shard.blocks) and digest_bytes(block) != shard.blocks[blocks]:
                found.append(Damage(shard.name, blocks, "holds other bytes"))
            blocks += 1
            if on_progress is not None:
                on_progress(before + whole.size_bytes)
    except NotFound:
        return [Damage(shard.name, None, "is missing")]
    if whole.size_bytes != shard.size_bytes:
        sizes = f"has {whole.size_bytes:,} bytes, {shard.size_bytes:,} are in the manifest"
        found.append(Damage(shard.name, None, sizes))
    elif not found and whole.hexdigest() != shard.xxh3:
        found.append(Damage(shard.name, None, "all blocks are right, its own checksum is not"))
    return found


def _offsets(store: ObjectStore, shard: ShardFile) -> list[Damage]:
    index = shard.index
    try:
        raw = store.get(index.name)
    except NotFound:
        return [Damage(index.name, None, "is missing")]
    if digest_bytes(raw) != index.xxh3:
        return [Damage(index.name, None, "holds other bytes")]
    offsets = np.frombuffer(raw, dtype=OFFSET_TYPE).astype(np.int64)
    risen = bool((np.diff(offsets) > 0).all())
    if len(offsets) != index.count or not risen or (offsets >= shard.extent).any():
        return [Damage(index.name, None, "its offsets do not rise, or leave the shard")]
    return []
