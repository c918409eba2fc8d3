"""One checkpoint on its way to this node's disk, from other nodes and the store."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog
from opentelemetry import metrics

from gangline_schemas.checkpoint import CommitRecord
from gangline_schemas.events.workers import ObjectDigest
from gangline_storage.digest import Digest
from gangline_storage.durable import replace_file
from gangline_storage.errors import NotFound, StoreError
from gangline_storage.port import CHUNK_BYTES, ObjectStore
from gangline_worker.agent.isolation.files import Owner, acting_as

from .integrity import CheckpointDamaged, damage_of
from .referred import place_of

log = structlog.get_logger(__name__)

COMMIT_FILE = "COMMIT.json"
_MANIFEST = ".json"
_METER = metrics.get_meter("gangline.agent")
_FILES = _METER.create_counter(
    "gangline.checkpoint.fetched.files", description="Files of checkpoints to start from, by tier."
)
_BYTES = _METER.create_counter(
    "gangline.checkpoint.fetched", unit="By", description="The same files' bytes, by tier."
)


class Tier(StrEnum):
    """Where a copy of a checkpoint's file is, the nearest first."""

    LOCAL = "local"
    PEER = "peer"
    STORE = "store"


class Fetched:
    """The files that one fetch of a checkpoint brought, by tier; also in the process's metrics."""

    def __init__(self) -> None:
        self._files: Counter[Tier] = Counter()
        self._bytes: Counter[Tier] = Counter()

    def add(self, tier: Tier, size_bytes: int) -> None:
        """A file is here, and its copy of that tier is what was committed."""
        self._files[tier] += 1
        self._bytes[tier] += size_bytes
        _FILES.add(1, {"tier": tier.value})
        _BYTES.add(size_bytes, {"tier": tier.value})

    def counts(self) -> dict[str, int]:
        """For a line of the log: files and bytes of each tier."""
        return {f"{tier}_files": self._files[tier] for tier in Tier} | {
            f"{tier}_bytes": self._bytes[tier] for tier in Tier
        }


class OtherCopies(Protocol):
    """The copies of one checkpoint's files on other nodes. For one thread."""

    def find(self, wanted: Sequence[ObjectDigest]) -> list[ObjectDigest]:
        """Find out which nodes have these; they come in the order in which to `bring` them."""

    def bring(self, digest: ObjectDigest, put: Callable[[Iterator[bytes]], object]) -> str | None:
        """Let `put` write a file's bytes; the node that gave them, None: no other node has it.

        `put` must keep nothing when the iterator raises. Raises what `put` does.
        """


class _Wanted(NamedTuple):
    """An object that is not at `path` as it was committed, and what is wrong there."""

    digest: ObjectDigest
    path: Path
    damage: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """Brings the files of one checkpoint, whose keys begin with `prefix`, to `folder`.

    The folder is the owner's; `incoming` is a file of the agent's, for this fetch alone. `note`
    gets the folders beside it that are needed, too. For one thread.
    """

    store: ObjectStore
    prefix: str
    folder: Path
    incoming: Path
    owner: Owner | None
    peers: OtherCopies | None
    note: Callable[[Path, list[Path]], None]
    brought: Fetched = field(default_factory=Fetched)

    def record(self, key: str) -> CommitRecord:
        """The commit record; the store's is always written over the one that lies here.

        Raises CheckpointDamaged, OSError and StoreError.
        """
        try:
            raw = self.store.get(key)
            record = CommitRecord.decode(raw)
        except NotFound:
            raise self._missing(key) from None
        except ValueError as error:
            raise CheckpointDamaged(f"{key} is no commit record", key) from error
        with acting_as(self.owner):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.folder / COMMIT_FILE, [raw])
        return record

    def bring(
        self, digests: Sequence[ObjectDigest], *, read: bool = False
    ) -> list[tuple[str, bool]]:
        """Bring the objects that are not here as they were committed.

        Returns where each copy comes from, and whether one was here before. Of a shard that is
        here, only the size is checked, unless `read` is set. The ranks read the shards in parallel,
        verify each byte, and ask for another copy of a damaged one.
        Raises CheckpointDamaged, OSError and StoreError.
        """
        wanted = self._wanted(digests, read=read)
        order = [item.digest for item in wanted.values()]
        if self.peers is not None and order:
            order = self.peers.find(order)
        origins = []
        for digest in order:
            item = wanted[digest.key]
            with acting_as(self.owner):
                was_here = item.path.is_symlink() or item.path.exists()
                item.path.unlink(missing_ok=True)
            node = self._from_peer(item)
            if node is None:
                self._from_store(item)
            origin = f"node {node}" if node is not None else "the store"
            self.brought.add(Tier.PEER if node is not None else Tier.STORE, digest.size_bytes)
            if was_here:
                damage = f"this node's {item.damage}"
                log.warning("checkpoint.copy_replaced", key=digest.key, damage=damage, by=origin)
            origins.append((origin, was_here))
        return origins

    def _wanted(self, digests: Sequence[ObjectDigest], *, read: bool) -> dict[str, _Wanted]:
        """By key."""
        found = {}
        for digest in digests:
            path = place_of(digest.key, self.prefix, self.folder)
            if path is None:
                raise CheckpointDamaged(f"{digest.key} does not lie beside its commit record")
            with acting_as(self.owner):
                path.parent.mkdir(mode=0o700, exist_ok=True)
            self.note(self.folder, [path.parent])
            every = read or digest.key.endswith(_MANIFEST)
            if (damage := damage_of(path, digest, self.owner, read=every)) is None:
                self.brought.add(Tier.LOCAL, digest.size_bytes)
            else:
                found[digest.key] = _Wanted(digest, path, damage)
        return found

    def _from_peer(self, item: _Wanted) -> str | None:
        """Bring it from another node and say from which, if one gives a sound copy."""
        if self.peers is None:
            return None

        def put(chunks: Iterator[bytes]) -> None:
            with acting_as(self.owner):
                replace_file(item.path, chunks)

        return self.peers.bring(item.digest, put)

    def _from_store(self, item: _Wanted) -> None:
        key = item.digest.key
        try:
            self._store_to(item.path, key)
        except NotFound:
            raise self._missing(key) from None
        if (again := damage_of(item.path, item.digest, self.owner)) is not None:
            with acting_as(self.owner):
                item.path.unlink(missing_ok=True)
            if self._sound_in_store(item.digest):
                raise OSError(errno.EIO, f"Input/output error: this node's copy of {key} {again}")
            reason = f"{key} is not what was committed: the store's {again}"
            raise CheckpointDamaged(reason, key)

    def _missing(self, key: str) -> CheckpointDamaged | StoreError:
        """A store with nothing of the job is another one, as where this node has not mounted it."""
        job = self.prefix.rsplit("/", 2)[0]
        if next(iter(self.store.list(f"{job}/")), None) is None:
            return StoreError(
                f"{key} is missing, as all of its job: has this node the right store?"
            )
        return CheckpointDamaged(f"{key} is missing", key)

    def _sound_in_store(self, digest: ObjectDigest) -> bool:
        """Whether the bytes that come are right, so that this node's memory or disk spoils them."""
        found = Digest()
        for chunk in self.store.stream(digest.key):
            found.update(chunk)
        return found.hexdigest() == digest.xxh3

    def _store_to(self, path: Path, key: str) -> None:
        if self.owner is None:
            self.store.fetch(key, path)
            return
        try:
            self.store.fetch(key, self.incoming)
            with self.incoming.open("rb") as file, acting_as(self.owner):
                replace_file(path, iter(lambda: file.read(CHUNK_BYTES), b""))
        finally:
            self.incoming.unlink(missing_ok=True)
