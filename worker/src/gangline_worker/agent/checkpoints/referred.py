"""Files of earlier steps that an incremental checkpoint needs, on this node's disk."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from gangline_schemas.checkpoint import CommitRecord, manifest_name, shard_name
from gangline_schemas.events.workers import ObjectDigest

_STEP = re.compile(r"step-\d{10,}")


def objects(record: CommitRecord) -> tuple[ObjectDigest, ...]:
    """All that is read to start from a checkpoint."""
    return (*record.manifests, *record.shards, *(record.referred or ()))


def objects_of(record: CommitRecord, ranks: Collection[int]) -> tuple[ObjectDigest, ...]:
    """The objects of the record that these ranks wrote."""
    names = {name(rank) for rank in ranks for name in (shard_name, manifest_name)}
    return tuple(digest for digest in objects(record) if digest.key.rpartition("/")[2] in names)


def place_of(key: str, prefix: str, folder: Path) -> Path | None:
    """Where an object lies here: in the checkpoint's folder, or in that of a step beside it.

    None: a commit record below `prefix` cannot name it.
    """
    parent, _, name = key.rpartition("/")
    attempt, _, step = parent.rpartition("/")
    if name in {"", ".", ".."}:
        return None
    if parent == prefix:
        return folder / name
    if attempt == prefix.rpartition("/")[0] and _STEP.fullmatch(step):
        return folder.parent / step / name
    return None


class Referred:
    """Which local folders others refer to, as far as this process stored or fetched them.

    Unknown files are fetched from the store again when they are needed.
    """

    def __init__(self) -> None:
        self._by_folder: dict[Path, frozenset[Path]] = {}

    def note(self, folder: Path, others: Iterable[Path]) -> None:
        """The checkpoint in `folder` needs these folders as well."""
        if found := frozenset(others) - {folder}:
            self._by_folder[folder] = self._by_folder.get(folder, frozenset()) | found

    def needed(self, kept: Iterable[Path]) -> set[Path]:
        """These folders and all that they need."""
        found = set(kept)
        return found.union(*(self._by_folder.get(folder, frozenset()) for folder in found))

    def forget(self, below: Path) -> None:
        """Forget the files below a folder that was deleted."""
        for folder in [found for found in self._by_folder if found.is_relative_to(below)]:
            del self._by_folder[folder]
