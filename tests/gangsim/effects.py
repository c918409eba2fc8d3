"""The hands of a simulated agent: its ranks, its preparations and its uploads, in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline_schemas.checkpoint import (
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
from gangline_schemas.rank_protocol import FromRank, ShardReady
from gangline_storage.digest import digest_bytes
from gangline_storage.errors import NotFound, StoreError, StoreUnavailable
from gangline_worker.agent.decide import effects, inputs
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.workspace import prepare
from gangsim.engine import Violation
from gangsim.training import RankProcess, state_of

if TYPE_CHECKING:
    from gangsim.node import AgentProcess

_AWAY_TRIES = int(prepare._AWAY_S / prepare._RETRY_S)
"""Of a store that does not answer."""
_SLOW_SHARE, _SLOWER = 0.2, 10.0  # a node whose uploads take their time: gangs fail meanwhile


class Damaged(Exception):
    """An object of a committed checkpoint is missing or holds other bytes; `key` names it."""

    def __init__(self, key: str, *, missing: bool) -> None:
        super().__init__(f"{key} is {'missing' if missing else 'not what was committed'}")
        self.key = key
        self.missing = missing


class NodeEffects:
    """What one agent process does besides talking."""

    def __init__(self, process: AgentProcess) -> None:
        self._process = process
        self._world = process.world
        self._random = process.node.random
        self._allocations: dict[GangKey, GangAllocated] = {}
        self._gpus: dict[GangKey, tuple[int, ...]] = {}
        self._saved: dict[tuple[RankKey, int], tuple[bytes, bytes]] = {}
        self.ranks: dict[RankKey, RankProcess] = {}
        self._pids = 100
        self._slower = _SLOWER if self._random.random() < _SLOW_SHARE else 1.0

    def execute(self, effect: effects.Effect) -> None:
        """Do it, or start to."""
        later, uniform = self._process.later, self._random.uniform
        match effect:
            case effects.Prepare(gang=gang, allocation=allocation, assignment=assignment):
                self._allocations[gang] = allocation
                self._gpus[gang] = assignment.gpus
                now_s = self._process.engine.now_s
                later(
                    uniform(0.1, 1.0),
                    lambda: self._prepare(gang, allocation, 1, now_s),
                )
            case effects.OpenStore(gang=gang):
                later(uniform(0.02, 0.1), lambda: self._process.give(inputs.StoreOpened(gang)))
            case effects.Spawn(rank=rank, local_rank=local):
                later(uniform(0.01, 0.1), lambda: self._spawn(rank, local))
            case effects.TerminateRank(rank=rank):
                later(uniform(0.001, 0.01), lambda: self._terminate(rank))
            case effects.KillRank(rank=rank):
                later(uniform(0.01, 0.6), lambda: self._kill(rank))
            case effects.SendControl(rank=rank, control=control):
                later(uniform(0.001, 0.01), lambda: self._control(rank, control))
            case effects.CheckShard(rank=rank, ready=ready):
                later(
                    uniform(0.01, 0.5), lambda: self._process.give(inputs.ShardChecked(rank, ready))
                )
            case effects.Upload(rank=rank, ready=ready):
                later(self._slower * uniform(0.1, 2.0), lambda: self._upload(rank, ready))
            case effects.CloseGang(gang=gang):
                self._allocations.pop(gang, None)
                self._gpus.pop(gang, None)
                for key in [key for key in self._saved if key[0].gang == gang]:
                    del self._saved[key]

    def die(self) -> None:
        """The kernel kills the ranks of a dead agent."""
        for rank in list(self.ranks.values()):
            rank.exited = lambda *_: None
            rank.end(signal=9)
            self._world.machines.ended(rank)
            self._world.lost_rank(rank, clean=False)
        self.ranks.clear()

    def _prepare(
        self, gang: GangKey, allocation: GangAllocated, tried: int, since_s: float
    ) -> None:
        try:
            if allocation.resume is not None:
                self._fetch(allocation.resume, allocation.team)
        except Damaged as error:
            if error.missing:
                self._world.resume_missing(allocation, since_s)
            failed = inputs.PrepareFailed(
                gang, user_fault=False, message=str(error), damaged_object=error.key
            )
            self._process.give(failed)
        except StoreError as error:
            away = isinstance(error, StoreUnavailable)
            if tried < (_AWAY_TRIES if away else prepare._STORE_ATTEMPTS):
                self._process.later(
                    prepare._RETRY_S, lambda: self._prepare(gang, allocation, tried + 1, since_s)
                )
            else:
                failed = inputs.PrepareFailed(gang, user_fault=False, message=str(error))
                self._process.give(failed)
        else:
            self._process.give(inputs.Prepared(gang))

    def _fetch(self, resume: CheckpointRef, team: str) -> None:
        if not resume.commit_key.startswith(f"teams/{team}/"):
            raise StoreError("of another team")
        record = CommitRecord.decode(self._read(resume.commit_key))
        found: dict[str, bytes] = {}
        for digest in (*record.manifests, *record.shards, *(record.referred or ())):
            data = found[digest.key] = self._read(digest.key)
            if not intact(data, digest):
                raise Damaged(digest.key, missing=False)
            self._world.check_restored(resume, digest.key, data)
        for digest in record.manifests:
            self._put_together(resume, RankManifest.decode(found[digest.key]), found)

    def _put_together(
        self, resume: CheckpointRef, manifest: RankManifest, found: dict[str, bytes]
    ) -> None:
        """The chunks of a rank, wherever they lie, are what it held."""
        if manifest.chunks is None:
            return
        attempt = resume.commit_key.rpartition("/")[0].rpartition("/")[0]
        whole = b""
        for chunk in manifest.chunks:
            key = f"{attempt}/{step_folder(chunk.step)}/{shard_name(manifest.rank)}"
            if key not in found:
                raise Violation(f"{resume.commit_key} does not name {key}")
            whole += found[key][chunk.byte_offset : chunk.byte_offset + chunk.size_bytes]
        place = (manifest.job_id, manifest.attempt, manifest.step, manifest.rank)
        if whole != b"".join(state_of(*place)):
            raise Violation(f"{place} was put together of other bytes than were saved")
        self._world.engine.count("referred" if manifest.refers else "whole")

    def _read(self, key: str) -> bytes:
        try:
            return self._world.store.get(key)
        except NotFound:
            raise Damaged(key, missing=True) from None

    def _spawn(self, key: RankKey, local: int) -> None:
        self._pids += 1
        rank = RankProcess(
            key=key,
            node_id=self._process.node.node_id,
            incarnation=self._process.core.incarnation,
            gpu=self._gpu(key.gang, local),
            pid=self._pids,
            say=lambda message, shard, manifest: self._say(key, message, shard, manifest),
            exited=self._exited,
            full_every=self._allocations[key.gang].spec.checkpoint.full_every,
        )
        self.ranks[key] = rank
        self._world.machines.started(rank)
        training = self._world.training(self._allocations[key.gang])
        self._process.give(inputs.RankSpawned(key, rank.pid))
        training.join(rank)

    def _gpu(self, gang: GangKey, local: int) -> int:
        """Its GPU; of a rank without one a place of its own, below 0."""
        gpus = self._gpus[gang]
        return gpus[local] if gpus else -self._pids

    def _say(self, key: RankKey, message: FromRank, shard: bytes, manifest: bytes) -> None:
        if isinstance(message, ShardReady):
            self._saved[key, message.step] = (shard, manifest)
        self._process.give(inputs.RankMessage(key, message))

    def _exited(self, rank: RankProcess, code: int | None, signal: int | None, words: str) -> None:
        self.ranks.pop(rank.key, None)
        self._world.machines.ended(rank)
        self._world.lost_rank(rank, clean=code == 0)
        exited = inputs.RankExited(rank.key, code=code, signal=signal, last_words=words)
        self._process.later(self._random.uniform(0.001, 0.05), lambda: self._process.give(exited))

    def _terminate(self, key: RankKey) -> None:
        rank = self.ranks.get(key)
        if rank is not None and key.gang in self._world.trainings:
            self._world.trainings[key.gang].terminate(rank)

    def _kill(self, key: RankKey) -> None:
        rank = self.ranks.get(key)
        if rank is not None:
            rank.end(signal=9)

    def _control(self, key: RankKey, control: object) -> None:
        rank = self.ranks.get(key)
        if rank is not None and key.gang in self._world.trainings:
            self._world.trainings[key.gang].control(rank, control)  # type: ignore[arg-type]

    def _upload(self, key: RankKey, ready: ShardReady) -> None:
        allocation = self._allocations.get(key.gang)
        saved = self._saved.pop((key, ready.step), None)
        if allocation is None or saved is None:
            failed = inputs.UploadFailed(key, ready.step, "the gang was closed")
            self._process.give(failed)
            return
        prefix = checkpoint_prefix(
            job_prefix(allocation.team, allocation.job_id, allocation.spec),
            key.gang.attempt,
            ready.step,
        )
        shard_key = f"{prefix}/{shard_name(key.rank)}"
        manifest_key = f"{prefix}/{manifest_name(key.rank)}"
        self._world.saved |= {shard_key: saved[0], manifest_key: saved[1]}
        try:
            self._world.store.put(shard_key, saved[0])
            self._world.store.put(manifest_key, saved[1])
        except StoreError as error:
            self._process.give(inputs.UploadFailed(key, ready.step, str(error)))
            return
        written = CheckpointShardWritten(
            job_id=key.gang.job_id,
            attempt=key.gang.attempt,
            step=ready.step,
            rank=key.rank,
            world_size=ready.world_size,
            node_id=self._process.node.node_id,
            manifest=ready.manifest.model_copy(update={"key": manifest_key}),
            shards=(ready.shard.model_copy(update={"key": shard_key}),),
        )
        self._process.give(inputs.Uploaded(key, written))


def intact(data: bytes, digest: ObjectDigest) -> bool:
    """Whether these are the bytes that were committed."""
    return digest_bytes(data) == digest.xxh3
