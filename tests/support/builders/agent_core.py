"""A node of the agent's pure core with a clock of its own, and its inputs and requests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count

from pydantic import TypeAdapter

from gangline_bus.codec import Received
from gangline_schemas.base import Event
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    GangStopping,
    ReleaseReason,
    StopReason,
)
from gangline_schemas.events.workers import CheckpointShardWritten, NodeInfo, ObjectDigest
from gangline_schemas.job import TrialRef
from gangline_schemas.rank_protocol import ShardReady
from gangline_worker.agent.decide.core import AgentCore
from gangline_worker.agent.decide.core_state import CoreState
from gangline_worker.agent.decide.effects import Effect, Publish, SendHeartbeat, Spawn
from gangline_worker.agent.decide.inputs import (
    HeartbeatAcked,
    Input,
    Prepared,
    RankMessage,
    RankSpawned,
    ShardChecked,
    StoreOpened,
    Uploaded,
)
from gangline_worker.agent.decide.keys import GangKey, Moment, RankKey
from gangline_worker.agent.decide.membership import AgentLimits
from support.builders import gangs
from support.builders.deciding import spec

START = datetime(2026, 11, 1, tzinfo=UTC)


def node_info(gpus: int = 2) -> NodeInfo:
    return gangs.node_info(
        "node-0", gpus, model="cpu", gpu_memory_gb=1, incarnation="boot", cpus=gpus, memory_gb=4,
        rendezvous_ports=(21000,),
    )  # fmt: skip


NODE = node_info()
LEASE_S = 10.0
DIGEST = ObjectDigest(key="k", size_bytes=1, xxh3="0" * 32)


class Node:
    """The core with a clock of its own."""

    def __init__(self) -> None:
        self.core = AgentCore(NODE, AgentLimits(heartbeat_interval_s=1.0, lease_s=LEASE_S))
        self.time_s = 100.0
        self._offsets = count()
        self.first = self.core.start(self.at)

    @property
    def at(self) -> Moment:
        return Moment(self.time_s, START + timedelta(seconds=self.time_s))

    def do(self, *items: Input | Event) -> list[Effect]:
        """All effects that follow from these inputs."""
        out: list[Effect] = []
        for item in items:
            given = self._received(item) if isinstance(item, Event) else item
            out += self.core.handle(given, self.at)
        return out

    def acked(self) -> list[Effect]:
        return self.do(HeartbeatAcked(self.core.incarnation, self.time_s))

    def running(self, attempt: int = 1, **allocated: object) -> list[RankKey]:
        """A gang whose ranks all run."""
        event = allocation(attempt, **allocated)
        gang = GangKey(event.job_id, attempt)
        out = self.do(event, Prepared(gang), StoreOpened(gang))
        ranks = [effect.rank for effect in out if isinstance(effect, Spawn)]
        self.do(*(RankSpawned(rank, 1000 + rank.rank) for rank in ranks))
        return ranks

    def _received(self, event: Event) -> Received:
        offset = next(self._offsets)
        envelope = Envelope(id=f"e{offset}", source="/t", time=self.at.utc, subject="s", data=event)
        return Received(envelope, "t", 0, offset)


def allocation(
    attempt: int = 1,
    *,
    job_id: str = "job",
    node_id: str = "node-0",
    incarnation: str = "boot",
    gpus: tuple[int, ...] = (0, 1),
    first_rank: int = 0,
    grace_s: float = 30.0,
    trial: TrialRef | None = None,
) -> GangAllocated:
    wanted = spec("nlp", 4, stop_grace_seconds=grace_s, trial=trial)
    part = gangs.assigned(node_id, gpus, first_rank, incarnation=incarnation)
    return gangs.gang_allocated(job_id, wanted, part, attempt=attempt, world_size=4)


def released(
    attempt: int = 1, reason: ReleaseReason = ReleaseReason.RESTARTING, *, job_id: str = "job"
) -> GangReleased:
    return gangs.gang_released(job_id, attempt, START, reason)


def stopping(
    node: Node, after_s: float, attempt: int = 1, reason: StopReason = StopReason.PREEMPTED
) -> GangStopping:
    deadline = node.at.utc + timedelta(seconds=after_s)
    return GangStopping(job_id="job", attempt=attempt, reason=reason, deadline=deadline)


def published(effects: list[Effect], kind: type[Event]) -> list:
    return [
        item.event for item in effects if isinstance(item, Publish) and isinstance(item.event, kind)
    ]


def kinds(effects: list[Effect]) -> list[type]:
    return [type(item) for item in effects if not isinstance(item, SendHeartbeat)]


def ready(rank: RankKey, step: int = 5, world_size: int = 4) -> RankMessage:
    message = ShardReady(
        step=step, rank=rank.rank, world_size=world_size, manifest=DIGEST, shard=DIGEST
    )
    return RankMessage(rank, message)


def checked(rank: RankKey, step: int = 5) -> ShardChecked:
    message = ready(rank, step).message
    assert isinstance(message, ShardReady)
    return ShardChecked(rank, message)


def written(rank: RankKey, step: int = 5) -> Uploaded:
    event = CheckpointShardWritten(
        job_id="job",
        attempt=rank.gang.attempt,
        step=step,
        rank=rank.rank,
        world_size=4,
        node_id="node-0",
        manifest=DIGEST,
        shards=(DIGEST,),
    )
    return Uploaded(rank, event)


def reread(state: CoreState) -> CoreState:
    """As it is to another program of the agent's process."""
    codec = TypeAdapter(CoreState)
    return codec.validate_json(codec.dump_json(state))


def begun_anew(node: Node) -> list[Effect]:
    """What the core asks for that another program of the agent's process begins with."""
    state = reread(node.core.state)
    node.core = AgentCore(NODE, AgentLimits(heartbeat_interval_s=1.0, lease_s=LEASE_S))
    return node.core.adopt(state)
