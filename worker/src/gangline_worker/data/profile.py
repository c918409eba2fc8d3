"""The profile of a snapshot, made when the snapshot is: `profile.json` beside its manifest.

It has the time at which the snapshot was made, so a copy of old data stays old. Data are read as
by training: each block is verified, and damaged ones are left out.

- Tokens: the lengths of documents, and the shares of tokens.
- Tar shards: the sizes of files by their extension, and the values of `.cls` files.

At most 512 blocks are read, spread evenly over the snapshot; `share` says how much that is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from gangline_registry.core.profiling import category_of, profile_of, sketch_of
from gangline_schemas.base import Model, Timestamp
from gangline_schemas.profile import NumberColumn, Profile
from gangline_storage import NotFound
from gangline_worker.data.blocks import DamagedBlock
from gangline_worker.data.fetching import FETCHES
from gangline_worker.data.flag import flag
from gangline_worker.data.manifest import Manifest, TarManifest
from gangline_worker.data.source import Snapshot, offsets_of
from gangline_worker.data.tar import TarData
from gangline_worker.data.tokens import TokenReader

PROFILE_FILE = "profile.json"
MOST_BLOCKS = 512
_MOST_LENGTHS = 2_000_000
_MOST_EXTENSIONS = 100
_MOST_DAMAGED = 8
_LABEL = "cls"
_LABEL_CHARS = 100


class SnapshotProfile(Model):
    """The profile of the snapshot of this name."""

    snapshot: str
    made_at: Timestamp | None = None
    """When the snapshot was made; None: it is not known."""
    sources: tuple[str, ...] = ()
    """The files and folders that it was made of."""
    profile: Profile


def kept_profile(snapshot: Snapshot) -> SnapshotProfile | None:
    """The profile that lies beside a snapshot's manifest; None: there is none of this snapshot.

    Raises OSError and StoreError.
    """
    with suppress(FileNotFoundError, NotFound, ValidationError):
        found = SnapshotProfile.decode(snapshot.read(PROFILE_FILE))
        return found if found.snapshot == snapshot.manifest.name else None
    return None


def make_profile(
    snapshot: Snapshot, made_at: datetime | None, *, most_blocks: int = MOST_BLOCKS
) -> SnapshotProfile:
    """Read the data and profile them.

    Raises:
        DataShardError: there is too much damage.
        DataError, OSError, StoreError: the data cannot be read.
    """
    manifest = snapshot.manifest
    if isinstance(manifest, TarManifest):
        made = _of_samples(snapshot, manifest, most_blocks)
    else:
        made = _of_tokens(snapshot, manifest, most_blocks)
    return SnapshotProfile(snapshot=manifest.name, made_at=made_at, profile=made)


def _blocks(snapshot: Snapshot, most: int) -> Iterator[int]:
    """The blocks that are read, counted over all shards; a store fetches the next ones ahead."""
    total = sum(len(shard.blocks) for shard in snapshot.manifest.shards)
    read = [number * total // most for number in range(most)] if total > most else [*range(total)]
    for number, block in enumerate(read):
        snapshot.source.expect(read[number : number + FETCHES])
        yield block


def _of_tokens(snapshot: Snapshot, manifest: Manifest, most: int) -> Profile:
    reader = TokenReader(snapshot, max_damaged=_MOST_DAMAGED, complain=flag)
    width = manifest.item_type.itemsize
    counts, read = Counter[int](), 0
    for block in _blocks(snapshot, most):
        shard, within = snapshot.source.place(block)
        start, length = manifest.block_range(shard, within)
        row = np.empty(length // width, dtype=np.int64)
        with suppress(DamagedBlock):
            reader.read(shard * manifest.shard_tokens + start // width, row)
            tokens, times = np.unique(row, return_counts=True)
            counts.update(dict(zip(tokens.tolist(), times.tolist(), strict=True)))
            read += len(row)
    lengths = np.concatenate([*_lengths(snapshot, manifest)]).astype(float)
    columns = (
        NumberColumn(name="document_tokens", sketch=sketch_of(lengths)),
        category_of("token", {str(token): count for token, count in counts.items()}),
    )
    share = max(1, read) / manifest.tokens
    return Profile(rows=len(lengths), share=share, columns=columns)


def _lengths(snapshot: Snapshot, manifest: Manifest) -> Iterator[NDArray[np.int64]]:
    """The lengths of documents in tokens, shard by shard; of very many each n-th alone."""
    every = -(-manifest.documents // _MOST_LENGTHS)
    last, number = np.empty(0, dtype=np.int64), 0
    for index, shard in enumerate(manifest.shards):
        starts = offsets_of(shard, snapshot.read).astype(np.int64) + index * manifest.shard_tokens
        known = np.concatenate([last, starts])
        if index == len(manifest.shards) - 1:
            known = np.append(known, manifest.tokens)
        lengths = np.diff(known)
        yield lengths[-number % every :: every]
        number += len(lengths)
        last = known[-1:]


def _of_samples(snapshot: Snapshot, manifest: TarManifest, most: int) -> Profile:
    data = TarData(
        manifest, snapshot.source, snapshot.read, seed=0, max_damaged=_MOST_DAMAGED, complain=flag
    )
    sizes: list[dict[str, int]] = []
    labels: list[str | None] = []
    for block in _blocks(snapshot, most):
        for number in data.beginning_in(block):
            with suppress(DamagedBlock):
                files = data.sample(number).files
                sizes.append({extension: len(content) for extension, content in files.items()})
                labels.append(_label(files[_LABEL]) if _LABEL in files else None)
    common = Counter(extension for sample in sizes for extension in sample)
    columns = {
        f"{extension[:_LABEL_CHARS]}.bytes": np.array([one.get(extension, np.nan) for one in sizes])
        for extension, _ in common.most_common(_MOST_EXTENSIONS)
    }
    every = {_LABEL: labels} if _LABEL in common else {}
    return profile_of({**columns, **every}, len(sizes), share=max(1, len(sizes)) / manifest.samples)


def _label(content: bytes) -> str:
    return content[:_LABEL_CHARS].decode(errors="replace").strip()
