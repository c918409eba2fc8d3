"""Checkpoints between this node's disk and the object store.

Up: a rank's shard, then its manifest, each checked against the digest that the rank gave.
Down: a committed checkpoint, once per node for all its ranks, every object verified; what this
node wrote itself is used where its digest is right, and fetched from the store where it is not.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import structlog

from gangline_schemas.checkpoint import (
    CommitRecord,
    checkpoint_prefix,
    job_prefix,
    manifest_name,
    shard_name,
)
from gangline_schemas.events.scheduling import CheckpointRef, GangAllocated
from gangline_schemas.events.workers import CheckpointShardWritten, ObjectDigest
from gangline_schemas.rank_protocol import ShardReady
from gangline_storage.digest import digest_file
from gangline_storage.errors import NotFound
from gangline_storage.port import ObjectStore

from .model import RankKey

log = structlog.get_logger(__name__)

_METRICS_LIMIT = 1000
_COMMIT_FILE = "COMMIT.json"


class CheckpointDamaged(Exception):
    """An object is not what its digest says; the message names it, `key` too if it is committed."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class WrongPath(Exception):
    """A rank named files that are not its own."""


class Checkpoints:
    """The checkpoints of all jobs on this node, below `folder`. May be used by many threads."""

    def __init__(self, folder: Path, store: ObjectStore, *, node_id: str, link: bool) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._store = store
        self._node_id = node_id
        self._link = link
        self._fetching = threading.Lock()
        self._busy: Counter[Path] = Counter()
        self._busy_lock = threading.Lock()

    def folder(self, job_id: str) -> Path:
        """GANGLINE_CHECKPOINT_DIR of a job; made when it is not there."""
        path = self._folder / job_id
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def upload(
        self, rank: RankKey, allocation: GangAllocated, ready: ShardReady
    ) -> CheckpointShardWritten:
        """Put a rank's part into the store, the manifest last.

        Raises WrongPath, CheckpointDamaged, OSError and StoreError.
        """
        prefix = checkpoint_prefix(
            job_prefix(allocation.team, allocation.job_id, allocation.spec),
            rank.gang.attempt,
            ready.step,
        )
        root = self.folder(allocation.job_id)
        with self._used(root / checkpoint_prefix("", rank.gang.attempt, ready.step)[1:]):
            shard = self._put(root, rank, ready, ready.shard, shard_name(rank.rank), prefix)
            manifest = self._put(
                root, rank, ready, ready.manifest, manifest_name(rank.rank), prefix
            )
        return CheckpointShardWritten(
            job_id=allocation.job_id,
            attempt=rank.gang.attempt,
            step=ready.step,
            rank=rank.rank,
            world_size=ready.world_size,
            node_id=self._node_id,
            manifest=manifest,
            shards=(shard,),
            write_s=max(0.0, ready.write_s),
            blocked_s=max(0.0, ready.blocked_s),
            metrics=dict(list(ready.metrics.items())[:_METRICS_LIMIT]),
        )

    def prune(self, job_id: str, keep_steps: int = 2) -> None:
        """Delete local copies of all but the newest steps of a job."""
        found = sorted(
            (self._folder / job_id).glob("attempt-*/step-*"),
            key=lambda path: (path.parent.name, path.name),
        )
        with self._busy_lock:
            for old in found[:-keep_steps]:
                if not self._busy[old]:
                    shutil.rmtree(old, ignore_errors=True)

    def forget(self, job_id: str) -> None:
        """Delete all local copies of a job that has ended."""
        shutil.rmtree(self._folder / job_id, ignore_errors=True)

    def fetch(self, ref: CheckpointRef, team: str) -> Path:
        """The folder of a committed checkpoint, complete and verified on this node's disk.

        Raises CheckpointDamaged, OSError and StoreError.
        """
        with self._fetching:
            prefix, folder = self._place(ref, team)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            record = self._record(ref.commit_key, folder)
            for digest in (*record.manifests, *record.shards):
                self._bring(digest, prefix, folder)
            return folder

    def refetch(self, ref: CheckpointRef, team: str, file: str) -> None:
        """Bring one file of a checkpoint again that a rank found damaged after `fetch`.

        Raises CheckpointDamaged (the store has no sound one either), WrongPath, OSError and
        StoreError.
        """
        with self._fetching:
            prefix, folder = self._place(ref, team)
            record = self._record(ref.commit_key, folder)
            found = [
                digest
                for digest in (*record.manifests, *record.shards)
                if digest.key == f"{prefix}/{file}"
            ]
            if not found and file != _COMMIT_FILE:
                raise WrongPath(f"{file[:200]} is no file of this checkpoint")
            for digest in found:
                self._bring(digest, prefix, folder)

    def _place(self, ref: CheckpointRef, team: str) -> tuple[str, Path]:
        """The prefix of a checkpoint's keys and its folder here."""
        prefix, _, name = ref.commit_key.rpartition("/")
        if name != _COMMIT_FILE or not prefix.startswith(f"teams/{team}/"):
            raise WrongPath(f"{ref.commit_key} is no commit record of team {team}")
        inner = checkpoint_prefix("", ref.attempt, ref.step)[1:]
        return prefix, self.folder(ref.job_id) / inner

    def _record(self, key: str, folder: Path) -> CommitRecord:
        """The commit record; the store's is always written over the one that lies here."""
        record = _decode(key, self._committed(key))
        self._store.fetch(key, folder / _COMMIT_FILE)
        return record

    @contextlib.contextmanager
    def _used(self, folder: Path) -> Iterator[None]:
        """Keep `prune` away from a folder."""
        with self._busy_lock:
            self._busy[folder] += 1
        try:
            yield
        finally:
            with self._busy_lock:
                self._busy[folder] -= 1
                self._busy += Counter()  # drops what is zero

    def _committed(self, key: str) -> bytes:
        try:
            return self._store.get(key)
        except NotFound:
            raise CheckpointDamaged(f"{key} is missing", key) from None

    def _bring(self, digest: ObjectDigest, prefix: str, folder: Path) -> None:
        parent, _, name = digest.key.rpartition("/")
        if parent != prefix or name in {"", ".", ".."}:
            raise CheckpointDamaged(f"{digest.key} does not lie beside its commit record")
        path = folder / name
        damage = _damage(path, digest)
        if damage is None:
            return
        was_here = path.is_symlink() or path.exists()
        path.unlink(missing_ok=True)
        try:
            self._store.fetch(digest.key, path)
        except NotFound:
            raise CheckpointDamaged(f"{digest.key} is missing", digest.key) from None
        if (again := _damage(path, digest)) is not None:
            path.unlink(missing_ok=True)
            reason = f"{digest.key} is not what was committed: the store's {again}"
            raise CheckpointDamaged(reason, digest.key)
        if was_here:
            log.warning("checkpoint.copy_replaced", key=digest.key, damage=f"this node's {damage}")

    def _put(
        self,
        root: Path,
        rank: RankKey,
        ready: ShardReady,
        digest: ObjectDigest,
        name: str,
        prefix: str,
    ) -> ObjectDigest:
        expected = f"{checkpoint_prefix('', rank.gang.attempt, ready.step)[1:]}/{name}"
        if digest.key != expected:
            raise WrongPath(f"rank {rank.rank} named {digest.key}; its file is {expected}")
        path = root / expected
        if path.is_symlink() or path.resolve() != root.resolve() / expected:
            raise WrongPath(f"{expected} is a link; checkpoints are plain files")
        if (damage := _damage(path, digest)) is not None:
            raise CheckpointDamaged(
                f"{expected} is not what rank {rank.rank} announced: it {damage}"
            )
        key = f"{prefix}/{name}"
        self._store.put_file(key, path, link=self._link)
        return digest.model_copy(update={"key": key})


def _damage(path: Path, digest: ObjectDigest) -> str | None:
    """What is wrong with a file, None when it is what its digest says."""
    try:
        size_bytes = path.stat().st_size
        if size_bytes != digest.size_bytes:
            return f"holds {size_bytes:,} bytes, {digest.size_bytes:,} were committed"
        found = digest_file(path)
    except FileNotFoundError:
        return "is missing"
    return None if found == digest.xxh3 else f"has xxh3-128 {found}, {digest.xxh3} was committed"


def _decode(key: str, raw: bytes) -> CommitRecord:
    try:
        return CommitRecord.decode(raw)
    except ValueError as error:
        raise CheckpointDamaged(f"{key} is no commit record", key) from error
