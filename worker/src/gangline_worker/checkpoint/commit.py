"""Committing on a local disk, for runs without an agent (torchrun, notebooks, tests).

On the platform the checkpoint service does this, after the agents' uploads; see
`gangline_schemas.checkpoint`. In both, a checkpoint counts by its COMMIT.json, written last.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import xxhash

from gangline_schemas.checkpoint import Alike, CommitRecord, RankManifest, manifest_name, shard_name
from gangline_schemas.events.workers import ObjectDigest
from gangline_worker.checkpoint.files import write_synced
from gangline_worker.checkpoint.loader import COMMIT_FILE


def commit_local(folder: Path, world_size: int) -> bool:
    """Commit the checkpoint in `folder` once every rank's manifest is there; False until then.

    Raises:
        ValueError: ranks hold different values of one tensor; it is named.
    """
    manifests, shards, found, alike = [], [], [], Alike()
    for rank in range(world_size):
        path = folder / manifest_name(rank)
        if not path.exists():
            return False
        raw = path.read_bytes()
        manifest = RankManifest.decode(raw)
        found.append(manifest)
        alike.add(manifest)
        manifests.append(
            ObjectDigest(key=path.name, size_bytes=len(raw), xxh3=xxhash.xxh3_128_hexdigest(raw))
        )
        shards.append(manifest.shard.model_copy(update={"key": shard_name(rank)}))
    if (differs := alike.problem()) is not None:
        raise ValueError(differs)
    record = CommitRecord(
        job_id=found[0].job_id,
        attempt=found[0].attempt,
        step=found[0].step,
        world_size=world_size,
        manifests=tuple(manifests),
        shards=tuple(shards),
        committed_at=datetime.now(UTC),
        metrics=found[0].metrics,
    )
    write_synced(folder / COMMIT_FILE, memoryview(record.encode()), COMMIT_FILE)
    return True


def committed(directory: Path) -> list[Path]:
    """Folders of the committed checkpoints below a checkpoint directory, oldest first."""
    return sorted(
        (path.parent for path in directory.glob(f"attempt-*/step-*/{COMMIT_FILE}")),
        key=lambda folder: (folder.parent.name, folder.name),
    )


def keep_latest(directory: Path, count: int) -> None:
    """Delete all but the newest `count` committed checkpoints and what was never committed."""
    kept = committed(directory)[-count:]
    if not kept:
        return
    newest = (kept[-1].parent.name, kept[-1].name)
    for folder in directory.glob("attempt-*/step-*"):
        if folder not in kept and (folder.parent.name, folder.name) < newest:
            shutil.rmtree(folder, ignore_errors=True)
