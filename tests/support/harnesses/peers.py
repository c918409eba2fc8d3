"""Agents' parts that give and get copies, over real sockets and a store that counts its reads."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from gangline_schemas.base import Event
from gangline_schemas.checkpoint import (
    CommitRecord,
    checkpoint_prefix,
    commit_key,
    job_prefix,
    manifest_name,
    shard_name,
)
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    NodeAssignment,
)
from gangline_schemas.events.workers import CheckpointShardWritten, ObjectDigest
from gangline_schemas.job import JobSpec
from gangline_schemas.rank_protocol import ShardReady
from gangline_storage.digest import digest_bytes
from gangline_storage.local import LocalStore
from gangline_storage.port import CHUNK_BYTES, ObjectInfo
from gangline_worker.agent.checkpoints.transfer import Checkpoints
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.isolation.files import Owner
from gangline_worker.agent.peers.tier import open_peer_tier
from gangline_worker.agent.peers.tls import PeerTls
from support.builders.gangs import assigned, gang_allocated

JOB, TEAM, STEP = "job", "nlp", 5
START = datetime(2026, 11, 1, tzinfo=UTC)
SPEC = JobSpec.model_validate({"name": "j", "team": TEAM, "resources": {"gpus": 1}, "run": "true"})


class CountingStore(LocalStore):
    """`read` are the keys whose objects were read, in order."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read: list[str] = []

    def get(self, key: str) -> bytes:
        self.read.append(key)
        return super().get(key)

    def fetch(self, key: str, path: Path, *, link: bool = False) -> ObjectInfo:
        self.read.append(key)
        return super().fetch(key, path, link=link)

    def stream(self, key: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        self.read.append(key)
        return super().stream(key, chunk_bytes)

    @property
    def files_read(self) -> list[str]:
        """The names of files of checkpoints among them; neither commit records nor the secret."""
        names = [key.rpartition("/")[2] for key in self.read]
        return [name for name in names if name.startswith("rank-")]


class PeerNode:
    """What an agent has of this: its checkpoints, the tier's server and client."""

    def __init__(
        self,
        folder: Path,
        name: str,
        store: LocalStore,
        timeout_s: float = 20.0,
        tls: PeerTls | None = None,
    ) -> None:
        self.name = name
        self.data = folder / name
        self.data.mkdir(exist_ok=True)
        tier = open_peer_tier(name, "127.0.0.1", 0, timeout_s, self.data, tls)
        assert tier is not None
        self.tier = tier
        self.store = store
        self.checkpoints = Checkpoints(self.data / "checkpoints", store, node_id=name, link=False)
        self.owner: Owner | None = None  # of all teams
        self.layer: Callable[[GangKey, str], BinaryIO | None] = lambda _gang, _digest: None
        self.copies = tier.start(store, lambda _: self.owner, self._layer)

    def _layer(self, gang: GangKey, digest: str) -> BinaryIO | None:
        return self.layer(gang, digest)

    def assignment(self, first_rank: int) -> NodeAssignment:
        return assigned(self.name, (0,), first_rank, copies_port=self.tier.port)

    def path(self, name: str, attempt: int = 1, step: int = STEP) -> Path:
        inner = checkpoint_prefix("", attempt, step)[1:]
        return self.data / "checkpoints" / JOB / inner / name

    def save(
        self, rank: int, allocation: GangAllocated, data: bytes, step: int = STEP
    ) -> CheckpointShardWritten:
        """A part of a checkpoint on this node's disk and in the store."""
        return save(self.checkpoints, rank, allocation, data, step)

    def fetch(self, allocation: GangAllocated) -> Path:
        """As when a gang is prepared."""
        assert allocation.resume is not None
        peers = self.copies.round(allocation)
        return self.checkpoints.fetch(allocation.resume, allocation.team, None, peers)

    def refetch(self, allocation: GangAllocated, file: str) -> tuple[str, bool]:
        """As when a rank found it damaged."""
        assert allocation.resume is not None
        peers = self.copies.round(allocation)
        return self.checkpoints.refetch(allocation.resume, allocation.team, file, None, peers)

    def stop(self) -> None:
        """Who connects is turned away, and wakes the server up: it need not be waited for."""
        stopping = threading.Thread(target=self.tier.stop)
        stopping.start()
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.tier.port), 1.0).close()
        stopping.join()


def save(
    checkpoints: Checkpoints, rank: int, allocation: GangAllocated, data: bytes, step: int = STEP
) -> CheckpointShardWritten:
    """What a rank leaves on a node's disk, uploaded."""
    attempt, job_id = allocation.attempt, allocation.job_id
    root = checkpoints.folder(job_id)
    inner = checkpoint_prefix("", attempt, step)[1:]
    (root / inner).mkdir(parents=True, exist_ok=True)
    digests = []
    for name, content in (
        (manifest_name(rank), b"manifest of %d" % rank),
        (shard_name(rank), data),
    ):
        (root / inner / name).write_bytes(content)
        digests.append(
            ObjectDigest(key=f"{inner}/{name}", size_bytes=len(content), xxh3=digest_bytes(content))
        )
    ready = ShardReady(
        step=step,
        rank=rank,
        world_size=allocation.world_size,
        manifest=digests[0],
        shard=digests[1],
    )
    return checkpoints.upload(RankKey(GangKey(job_id, attempt), rank), allocation, ready)


def gang(
    attempt: int,
    *nodes: NodeAssignment,
    resume: CheckpointRef | None = None,
    job_id: str = JOB,
    team: str = TEAM,
) -> GangAllocated:
    """A rank on each node."""
    return gang_allocated(job_id, SPEC, *nodes, attempt=attempt, team=team, resume=resume)


def commit(
    store: LocalStore,
    parts: list[CheckpointShardWritten],
    referred: list[ObjectDigest] | None = None,
) -> CheckpointRef:
    """What the checkpoint service does."""
    first = parts[0]
    key = commit_key(job_prefix(TEAM, first.job_id, SPEC), first.attempt, first.step)
    record = CommitRecord(
        format=1 if referred is None else 2,
        referred=None if referred is None else tuple(referred),
        job_id=first.job_id,
        attempt=first.attempt,
        step=first.step,
        world_size=len(parts),
        manifests=tuple(part.manifest for part in parts),
        shards=tuple(part.shards[0] for part in parts),
        committed_at=START,
    )
    store.put(key, record.encode())
    return CheckpointRef(
        job_id=first.job_id,
        attempt=first.attempt,
        step=first.step,
        world_size=len(parts),
        commit_key=key,
    )


class PeerHarness:
    """Nodes a and b with a committed checkpoint of theirs, of one rank each, and c with nothing."""

    def __init__(self, folder: Path, timeout_s: float = 20.0, tls: PeerTls | None = None) -> None:
        self.store = CountingStore(folder / "store")
        self.nodes = {
            name: PeerNode(folder, name, self.store, timeout_s, tls) for name in ("a", "b", "c")
        }
        self.data = [bytes([rank]) * 300_000 + b"end of %d" % rank for rank in (0, 1)]
        first = self.gang(1, "a", "b")
        self.hear(first)
        parts = [
            self.nodes[name].save(rank, first, self.data[rank])
            for rank, name in enumerate(("a", "b"))
        ]
        self.ref = commit(self.store, parts)

    def gang(self, attempt: int, *names: str, resume: CheckpointRef | None = None) -> GangAllocated:
        nodes = [self.nodes[name].assignment(rank) for rank, name in enumerate(names)]
        return gang(attempt, *nodes, resume=resume)

    def hear(self, event: Event) -> None:
        """All nodes read it."""
        for node in self.nodes.values():
            node.tier.note(event)

    def restart(self, *names: str, attempt: int = 2) -> GangAllocated:
        """The next attempt, on these nodes."""
        allocation = self.gang(attempt, *names, resume=self.ref)
        self.hear(allocation)
        self.store.read.clear()
        return allocation

    def stop(self) -> None:
        for node in self.nodes.values():
            node.stop()


@contextlib.contextmanager
def running_peers(
    folder: Path, timeout_s: float = 20.0, tls: PeerTls | None = None
) -> Iterator[PeerHarness]:
    harness = PeerHarness(folder, timeout_s, tls)
    try:
        yield harness
    finally:
        harness.stop()
