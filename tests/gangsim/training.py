"""Simulated training: ranks that meet, step together, save, finish, and die of each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gangline_schemas.checkpoint import (
    RankManifest,
    TensorSlice,
    checkpoint_prefix,
    manifest_name,
    shard_name,
)
from gangline_schemas.events.heartbeats import RankActivity
from gangline_schemas.events.workers import ObjectDigest
from gangline_schemas.rank_protocol import (
    Control,
    Doing,
    FromRank,
    HandlesStop,
    Hello,
    Report,
    ShardReady,
)
from gangline_storage.digest import digest_bytes
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.checkpoint.chunks import Tables, plan

if TYPE_CHECKING:
    from gangsim.engine import Engine
    from gangsim.plan import JobPlan

MEET_S = 90.0
WATCHDOG_S = 60.0
LOST_PEER = "Connection closed by peer"
NO_PEER = "Timed out waiting for clients"


@dataclass(slots=True, eq=False)
class RankProcess:
    """One rank's process on one GPU. The callbacks are its agent's."""

    key: RankKey
    node_id: str
    incarnation: str
    gpu: int
    pid: int
    say: Callable[[FromRank, bytes, bytes], None]
    exited: Callable[[RankProcess, int | None, int | None, str], None]
    full_every: int = 1
    running: bool = True
    arrived: bool = False
    hung: bool = False
    leaving: bool = False
    committed: int | None = None
    tables: Tables = field(init=False)

    def __post_init__(self) -> None:
        self.tables = Tables(self.full_every, lambda: self.committed)

    def end(self, code: int | None = None, signal: int | None = None, words: str = "") -> None:
        """The process is gone."""
        if self.running:
            self.running = False
            self.exited(self, code, signal, words)


@dataclass(slots=True, eq=False)
class Training:
    """One attempt's training loop, as its ranks run it together."""

    engine: Engine
    job: JobPlan
    gang: GangKey
    world_size: int
    step: int
    ranks: dict[int, RankProcess] = field(default_factory=dict)
    met: bool = False
    broken: bool = False
    stopping: bool = False
    save_asked: int = 0
    finished: bool = False

    def join(self, rank: RankProcess) -> None:
        """A rank's process has started."""
        self.ranks[rank.key.rank] = rank
        stream = self.engine.stream(f"rank/{rank.key}")
        self.engine.after(stream.uniform(0.1, 0.5), lambda: self._hello(rank))
        self.engine.after(MEET_S, lambda: self._give_up(rank))

    def control(self, rank: RankProcess, control: Control) -> None:
        """The agent asks for something."""
        if not rank.running or rank.hung:
            return
        rank.committed = control.committed
        if control.stop is not None:
            self.terminate(rank)
        if control.checkpoint_request > self.save_asked:
            self.save_asked = control.checkpoint_request
            if self.met and not self.broken:
                self._save()

    def terminate(self, rank: RankProcess) -> None:
        """SIGTERM: all save and leave at the next step's end; one without peers just ends."""
        if not rank.running or rank.hung:
            return
        if self.met and not self.broken:
            self.stopping = True
        elif not rank.leaving:
            rank.leaving = True
            self.engine.after(0.3, lambda: rank.end(code=0))

    def lose(self, rank: RankProcess) -> None:
        """A rank is gone; its peers notice a little later, one after the other."""
        if self.finished or self.broken:
            return
        if self.met:
            self.broken = True
            stream = self.engine.stream(f"broken/{self.gang}")
            for peer in list(self.ranks.values()):
                if peer.running and not peer.leaving:
                    self._end_later(peer, stream.uniform(0.3, 2.5), LOST_PEER)

    def _hello(self, rank: RankProcess) -> None:
        if not rank.running:
            return
        rank.say(Hello(rank=rank.key.rank, token="x"), b"", b"")
        rank.say(Doing(activity=RankActivity.STARTING), b"", b"")
        rank.arrived = True
        present = [peer for peer in self.ranks.values() if peer.running and peer.arrived]
        if len(present) == self.world_size and not self.met:
            self.met = True
            self.engine.note("trains", self.gang.job_id, self.gang.attempt, "from", self.step)
            self._tell(Doing(activity=RankActivity.TRAINING))
            self._tell(HandlesStop())
            self._next()

    def _give_up(self, rank: RankProcess) -> None:
        if rank.running and not self.met:
            rank.end(code=1, words=NO_PEER)

    def _end_later(self, rank: RankProcess, delay_s: float, words: str) -> None:
        def end() -> None:
            if not rank.hung:
                rank.end(code=1, words=words)

        self.engine.after(delay_s, end)

    def _next(self) -> None:
        self.engine.after(self.job.step_s, self._stepped)

    def _stepped(self) -> None:
        if self.broken or self.finished:
            return
        ranks = list(self.ranks.values())
        if any(rank.hung for rank in ranks):
            self.broken = True  # the collective never ends: the watchdog of the others does
            for rank in ranks:
                if rank.running and not rank.hung:
                    self._end_later(rank, WATCHDOG_S, LOST_PEER)
            return
        self.step += 1
        self._tell(Report(step=(self.step,), time_ms=(int(self.engine.now_s * 1000),), metrics={}))
        done = self.step >= self.job.steps
        if self.stopping or done or self.step % self.job.save_every == 0:
            self._save()
        if not self.stopping and not done:
            self._next()
            return
        self.finished = True
        for rank in ranks:
            rank.leaving = True
            stream = self.engine.stream(f"leave/{rank.key}")
            self.engine.after(stream.uniform(0.1, 0.8), self._leave(rank))

    def _leave(self, rank: RankProcess) -> Callable[[], None]:
        return lambda: rank.end(code=0)

    def _tell(self, message: FromRank) -> None:
        for rank in self.ranks.values():
            if rank.running:
                rank.say(message, b"", b"")

    def _save(self) -> None:
        for rank in self.ranks.values():
            if rank.running:
                found = saved(rank.key, self.step, self.world_size, rank.tables)
                if found is not None:
                    rank.say(*found)


def state_of(job_id: str, attempt: int, step: int, rank: int) -> tuple[bytes, bytes]:
    """What a rank holds after a step: what never changes in its attempt, and what always does."""
    frozen, trained = f"{job_id} {attempt} {rank}", f"{job_id} {attempt} {step} {rank}"
    return frozen.ljust(64).encode(), trained.ljust(64).encode()


def saved(
    key: RankKey, step: int, world_size: int, tables: Tables
) -> tuple[ShardReady, bytes, bytes] | None:
    """What a rank saves at a step: the announcement, the shard's and the manifest's bytes.

    None: it has saved this step. Without incremental saves it holds nothing that never changes.
    """
    gang = key.gang
    frozen, trained = state_of(gang.job_id, gang.attempt, step, key.rank)
    shard, chunks, size = trained, None, 64
    if tables.wanted:
        size = 128
        digests = [digest_bytes(frozen), digest_bytes(trained)]
        if tables.holds(step, digests):
            return None
        written = plan(step, ((0, 64), (64, 128)), digests, tables.base())
        tables.add(written.table)
        shard = b"".join((frozen + trained)[start:end] for start, end in written.spans)
        chunks = written.table.chunks
    folder = checkpoint_prefix("", gang.attempt, step)[1:]
    digest = ObjectDigest(
        key=f"{folder}/{shard_name(key.rank)}", size_bytes=len(shard), xxh3=digest_bytes(shard)
    )
    piece = TensorSlice(
        name="w",
        dtype="uint8",
        global_shape=(world_size * size,),
        start=(key.rank * size,),
        shape=(size,),
        byte_offset=0,
        size_bytes=size,
    )
    manifest = RankManifest(
        format=1 if chunks is None else 2,
        job_id=gang.job_id,
        attempt=gang.attempt,
        step=step,
        rank=key.rank,
        world_size=world_size,
        shard=digest.model_copy(update={"key": shard_name(key.rank)}),
        tensors=(piece,),
        chunks=chunks,
    )
    raw = manifest.encode()
    ready = ShardReady(
        step=step,
        rank=key.rank,
        world_size=world_size,
        manifest=ObjectDigest(
            key=f"{folder}/{manifest_name(key.rank)}",
            size_bytes=len(raw),
            xxh3=digest_bytes(raw),
        ),
        shard=digest,
        refers=manifest.refers,
    )
    return ready, shard, raw
