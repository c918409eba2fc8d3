"""Faults of token snapshots: on the way to a node, and in the store itself."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from chaos.fault import Fault
from chaos.faults import flip, frozen_newest, kill_rank
from chaos.world import Attack
from gangline_worker.data.manifest import MANIFEST_FILE
from support.builders.data import small_snapshot

CORPUS_BYTES = 40_000


def tokens(data_dir: Path) -> Mapping[str, object]:
    """A sound snapshot in a store, read through a cache."""
    return _from(_snapshot(data_dir), data_dir / "cache")


def damaged_tokens(data_dir: Path) -> Mapping[str, object]:
    """The same with one bit flipped in the store, which leaves out one block."""
    return _from(_damaged(data_dir), data_dir / "cache-of-damaged")


def no_damaged_tokens(data_dir: Path) -> Mapping[str, object]:
    """The same, and the job bears no damaged block."""
    return {**damaged_tokens(data_dir), "data_max_damaged_blocks": 0}


def flip_cached(attack: Attack) -> None:
    """In each shard that the node has cached; the next attempt looks before it reads."""
    frozen_newest(attack)
    for shard in (attack.platform.data_dir / "cache").glob("*/*"):
        flip(shard)
    attack.kill_rank()


def nothing(_attack: Attack) -> None:
    """The data is bad from the beginning."""


FAULTS_OF_DATA = (
    Fault("a bit flips in cached data", flip_cached, found="data_refetched_blocks", data=tokens),
    Fault("bad data in the store", kill_rank, found="job.flagged", data=damaged_tokens),
    Fault("bad data that is not borne", nothing, review=True, data=no_damaged_tokens),
)


def _from(snapshot: Path, cache: Path) -> Mapping[str, object]:
    return {"data": f"file://{snapshot}", "data_cache": str(cache)}


def _snapshot(data_dir: Path) -> Path:
    folder = data_dir / "corpus"
    if not (folder / "snapshot" / MANIFEST_FILE).exists():
        folder.mkdir()
        small_snapshot(folder, CORPUS_BYTES)
    return folder / "snapshot"


def _damaged(data_dir: Path) -> Path:
    copy = data_dir / "corpus" / "damaged"
    if not copy.exists():
        shutil.copytree(_snapshot(data_dir), copy)
        flip(min(copy.glob("*.tok")))
    return copy
