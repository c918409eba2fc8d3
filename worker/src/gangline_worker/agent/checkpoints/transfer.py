"""Checkpoints between this node's disk and the object store.

Up: a rank's shard, then its manifest, each checked against the digest that the rank gave.
Down: a committed checkpoint, once per node for all its ranks, or the part of it that these most
likely need, and the rest when they ask for it. Files that lie here are used. Missing and damaged
ones come from another node or the store, and are verified.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from weakref import WeakValueDictionary

import structlog

from gangline_schemas.checkpoint import (
    MAX_MANIFEST_BYTES,
    CommitRecord,
    RankManifest,
    checkpoint_prefix,
    job_prefix,
    manifest_name,
    shard_name,
    step_folder,
)
from gangline_schemas.events.scheduling import CheckpointRef, GangAllocated
from gangline_schemas.events.workers import CheckpointShardWritten, ObjectDigest
from gangline_schemas.rank_protocol import ShardReady
from gangline_storage.pace import Pace
from gangline_storage.port import ObjectStore
from gangline_worker.agent.decide.keys import RankKey
from gangline_worker.agent.host.trees import delete_tree, entries
from gangline_worker.agent.isolation.files import Owner, acting_as, opened_as

from .fetch import COMMIT_FILE, Fetch, OtherCopies
from .integrity import CheckpointDamaged, WrongPath, damage_of, plain_file
from .referred import Referred, objects, objects_of
from .share import Share

log = structlog.get_logger(__name__)

_RECORDS = 16  # that are remembered, for what ranks ask for
FETCHES = 4
"""Of so many jobs checkpoints are brought at a time: a store that is away for one holds up few."""


class Checkpoints:
    """The checkpoints of all jobs on this node, below `folder`. May be used by many threads.

    `link`: uploads are hard links where the store allows it. `pace` bounds them all together.
    `uploads` is the same store for uploads: what was saved lies here, so it may be waited for.
    """

    def __init__(
        self,
        folder: Path,
        store: ObjectStore,
        *,
        node_id: str,
        link: bool,
        pace: Pace | None = None,
        uploads: ObjectStore | None = None,
    ) -> None:
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        folder.chmod(0o711)  # the folders below are those of jobs, each its owner's alone
        self._folder = folder
        self._store = store
        self._uploads = uploads or store
        self._node_id = node_id
        self._link = link
        self._pace = pace
        self._fetching: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._fetches = threading.BoundedSemaphore(FETCHES)
        self._records: dict[str, CommitRecord] = {}  # by key, the newest last
        self._busy: Counter[Path] = Counter()
        self._referred = Referred()
        self._busy_lock = threading.Lock()

    def folder(self, job_id: str, owner: Owner | None = None) -> Path:
        """GANGLINE_CHECKPOINT_DIR of a job, the owner's; made when it is not there."""
        path = self._folder / job_id
        path.mkdir(mode=0o700, exist_ok=True)
        if owner is not None:
            os.chown(path, owner.uid, owner.uid, follow_symlinks=False)
        return path

    def check(
        self,
        rank: RankKey,
        allocation: GangAllocated,
        ready: ShardReady,
        owner: Owner | None = None,
    ) -> None:
        """See whether a rank's part lies here as it says. `owner` is the rank's user.

        Raises WrongPath, CheckpointDamaged and OSError.
        """
        root, inner = self._saved(rank, allocation, ready)
        folder = root / inner
        self._note(folder, [folder.parent / step_folder(step) for step in ready.refers])
        with self._used(folder):
            for digest, name in _objects(rank, ready):
                expected = f"{inner}/{name}"
                if digest.key != expected:
                    raise WrongPath(f"rank {rank.rank} named {digest.key}; its file is {expected}")
                path = plain_file(root, expected)
                if (damage := damage_of(path, digest, owner)) is not None:
                    announced = f"what rank {rank.rank} announced"
                    raise CheckpointDamaged(f"{expected} is not {announced}: it {damage}")

    def upload(
        self,
        rank: RankKey,
        allocation: GangAllocated,
        ready: ShardReady,
        owner: Owner | None = None,
    ) -> CheckpointShardWritten:
        """Put a rank's part that was checked into the store, the manifest last.

        `owner` is the rank's user. A change meanwhile is found before the commit.
        Raises WrongPath, OSError and StoreError.
        """
        prefix = checkpoint_prefix(
            job_prefix(allocation.team, allocation.job_id, allocation.spec),
            rank.gang.attempt,
            ready.step,
        )
        root, inner = self._saved(rank, allocation, ready)
        with self._used(root / inner):
            shard, manifest = (
                self._put(plain_file(root, f"{inner}/{name}"), digest, f"{prefix}/{name}", owner)
                for digest, name in _objects(rank, ready)
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
            write_s=ready.write_s,
            blocked_s=ready.blocked_s,
            metrics=ready.metrics,
        )

    def prune(self, job_id: str, keep_steps: int = 2, owner: Owner | None = None) -> None:
        """Delete local copies of all but a job's newest steps and what is known to be in them.

        A folder that cannot be listed stays: the owner can close it to himself.
        """
        with contextlib.suppress(PermissionError), self._busy_lock, acting_as(owner):
            found = sorted(
                (
                    step
                    for attempt in entries(self._folder / job_id)
                    if attempt.match("attempt-*")
                    for step in entries(attempt)
                    if step.match("step-*")
                ),
                key=lambda path: (path.parent.name, path.name),
            )
            kept = self._referred.needed(found[-keep_steps:])
            for old in found:
                if old not in kept and not self._busy[old]:
                    delete_tree(old)
                    self._referred.forget(old)

    def forget(self, job_id: str) -> None:
        """Delete all local copies of a job that has ended."""
        delete_tree(self._folder / job_id)
        with self._busy_lock:
            self._referred.forget(self._folder / job_id)

    def fetch(
        self,
        ref: CheckpointRef,
        team: str,
        owner: Owner | None = None,
        peers: OtherCopies | None = None,
        share: Share | None = None,
    ) -> Path:
        """The folder of a committed checkpoint on this node's disk.

        It is the owner's. Files from elsewhere are verified here, of files that lie here the size;
        the ranks verify all. Gives all files, or those that a `share` needs where that is known;
        `refetch` brings others that are wanted after all.
        Raises CheckpointDamaged, OSError and StoreError.
        """
        begun_s = time.monotonic()
        with self._fetching_of(ref.job_id):
            fetch = self._fetch(ref, team, owner, peers)
            record = self._record(fetch, ref.commit_key)
            found = objects(record)
            if share is not None:
                manifests = [
                    record.manifests[rank] for rank in share.manifests_of(record.world_size)
                ]
                fetch.bring(manifests)
                places = [fetch.folder / Path(digest.key).name for digest in manifests]
                if (needed := _needed(share, places, record.world_size, owner)) is not None:
                    found = objects_of(record, needed)
                found = tuple(digest for digest in found if digest not in manifests)
            fetch.bring(found)
        log.info(
            "checkpoint.fetched",
            job=ref.job_id,
            attempt=ref.attempt,
            step=ref.step,
            **fetch.brought.counts(),
            seconds=round(time.monotonic() - begun_s, 3),
        )
        return fetch.folder

    def refetch(
        self,
        ref: CheckpointRef,
        team: str,
        file: str,
        owner: Owner | None = None,
        peers: OtherCopies | None = None,
    ) -> tuple[str, bool]:
        """Bring one file of a checkpoint that a rank found damaged, or not here, after `fetch`.

        Whose copy it is now, and whether there was one before. Raises CheckpointDamaged (the store
        has no sound one either), WrongPath, OSError and StoreError.
        """
        with self._fetching_of(ref.job_id):
            fetch = self._fetch(ref, team, owner, peers)
            record = self._records.get(ref.commit_key)
            if record is None or file == COMMIT_FILE:
                record = self._record(fetch, ref.commit_key)
            keys = {f"{fetch.prefix}/{file}", f"{fetch.prefix.rpartition('/')[0]}/{file}"}
            found = [digest for digest in objects(record) if digest.key in keys]
            if not found and file != COMMIT_FILE:
                raise WrongPath(f"{file[:200]} is no file of this checkpoint")
            brought = fetch.bring(found, read=True)
            return brought[0] if brought else ("this node" if found else "the store", True)

    def _fetch(
        self, ref: CheckpointRef, team: str, owner: Owner | None, peers: OtherCopies | None
    ) -> Fetch:
        prefix, _, name = ref.commit_key.rpartition("/")
        if name != COMMIT_FILE or not prefix.startswith(f"teams/{team}/"):
            raise WrongPath(f"{ref.commit_key} is no commit record of team {team}")
        folder = self.folder(ref.job_id, owner) / checkpoint_prefix("", ref.attempt, ref.step)[1:]
        incoming = self._folder / f".incoming-{threading.get_ident()}"
        return Fetch(self._store, prefix, folder, incoming, owner, peers, self._note)

    @contextlib.contextmanager
    def _fetching_of(self, job_id: str) -> Iterator[None]:
        """One fetch at a time writes below a job's folder, and `FETCHES` below all of them."""
        with self._busy_lock:
            alone = self._fetching.setdefault(job_id, threading.Lock())
        with alone, self._fetches:
            yield

    def _record(self, fetch: Fetch, key: str) -> CommitRecord:
        record = fetch.record(key)
        with self._busy_lock:
            self._records[key] = record
            while len(self._records) > _RECORDS:
                del self._records[next(iter(self._records))]
        return record

    def _note(self, folder: Path, others: list[Path]) -> None:
        with self._busy_lock:
            self._referred.note(folder, others)

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

    def _saved(
        self, rank: RankKey, allocation: GangAllocated, ready: ShardReady
    ) -> tuple[Path, str]:
        """The job's folder, and in it that of the checkpoint."""
        inner = checkpoint_prefix("", rank.gang.attempt, ready.step)[1:]
        return self.folder(allocation.job_id), inner

    def _put(self, path: Path, digest: ObjectDigest, key: str, owner: Owner | None) -> ObjectDigest:
        with opened_as(owner, path) as file:
            # A linked file would stay the rank's to change.
            linked = self._link and owner is None
            self._uploads.put_file(key, file, link=linked, pace=self._pace)
        return digest.model_copy(update={"key": key})


def _objects(rank: RankKey, ready: ShardReady) -> tuple[tuple[ObjectDigest, str], ...]:
    """A rank's two files and their names, in the order in which they go into the store."""
    return (
        (ready.shard, shard_name(rank.rank)),
        (ready.manifest, manifest_name(rank.rank)),
    )


def _needed(
    share: Share, manifests: Iterable[Path], saved: int, owner: Owner | None
) -> set[int] | None:
    """Which ranks' files a share needs; None: all, also where a manifest cannot be read."""
    found = []
    try:
        for path in manifests:
            with opened_as(owner, path) as file:
                raw = file.read_bytes() if isinstance(file, Path) else file.read(MAX_MANIFEST_BYTES)
            found.append(RankManifest.decode(raw))
    except (OSError, ValueError):
        return None
    return share.needs(found, saved)
