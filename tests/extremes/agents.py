"""An agent's core at a moment of the story, and what its shell would make of what it asks for."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from pydantic import TypeAdapter

from gangline_bus.codec import Received, encode, receive
from gangline_bus.decision import Tick
from gangline_bus.ports import Record
from gangline_schemas.catalog import topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.workers import CheckpointShardWritten
from gangline_schemas.rank_protocol import FROM_AGENT, FromRank, ShardReady
from gangline_worker.agent.decide.core import AgentCore
from gangline_worker.agent.decide.core_state import CoreState
from gangline_worker.agent.decide.effects import (
    CheckShard,
    Effect,
    OpenStore,
    Prepare,
    Publish,
    SendControl,
    SendHeartbeat,
    Spawn,
    Upload,
)
from gangline_worker.agent.decide.inputs import (
    Input,
    Prepared,
    RankMessage,
    RankSpawned,
    ShardChecked,
    StoreOpened,
    Uploaded,
)
from gangline_worker.agent.decide.keys import Moment, RankKey
from gangline_worker.agent.decide.membership import AgentLimits

from .readers import bounded
from .story import EventCase

LIMITS = AgentLimits(heartbeat_interval_s=1.0, lease_s=1e6)
_STATE = TypeAdapter(CoreState)
_ROUNDS = 20


class Agent:
    """The node of a case's gang, whose ranks run."""

    def __init__(self, case: EventCase) -> None:
        assert case.node is not None
        assert case.gang is not None
        self._at = Moment(100.0, case.now)
        self._node, self._gang = case.node, case.gang
        self.published: list[Received] = []
        self.core = AgentCore(case.node, LIMITS)
        self._perform(self.core.start(self._at))
        self.hear(self._received(self._event(case.gang)))

    @property
    def rank(self) -> RankKey:
        """One of its ranks."""
        return next(iter(self.core.gangs[0].ranks.values())).key

    def hear(self, item: Input) -> None:
        """Handle an input, and answer what it asks for."""
        with bounded():
            effects = self.core.handle(item, self._at)
        self._perform(effects)

    def say(self, message: FromRank) -> None:
        """A rank said this."""
        self.hear(RankMessage(self.rank, message))

    def pass_time(self, seconds: float) -> None:
        """A tick after so long."""
        self._at = Moment(self._at.mono_s + seconds, self._at.utc + timedelta(seconds=seconds))
        self.hear(Tick())

    def check_handover(self) -> None:
        """Another program of the agent's process continues from the same state."""
        state = self.core.state
        assert _STATE.validate_json(_STATE.dump_json(state)) == state

    def _perform(self, effects: Iterable[Effect]) -> None:
        waiting, rounds = list(effects), 0
        while waiting and rounds < _ROUNDS:
            rounds += 1
            answers = [answer for effect in waiting for answer in self._answers(effect)]
            waiting = [more for answer in answers for more in self.core.handle(answer, self._at)]

    def _answers(self, effect: Effect) -> list[Input]:
        match effect:
            case Prepare(gang=gang):
                return [Prepared(gang)]
            case OpenStore(gang=gang):
                return [StoreOpened(gang)]
            case Spawn(rank=rank):
                return [RankSpawned(rank, 1000 + rank.rank)]
            case CheckShard(rank=rank, ready=ready):
                return [ShardChecked(rank, ready)]
            case Upload(rank=rank, ready=ready):
                return [Uploaded(rank, self._written(rank, ready))]
            case Publish(subject=subject):
                self.published.append(
                    self._received(Envelope("i", "/a", self._at.utc, subject, effect.event))
                )
            case SendHeartbeat(heartbeat=heartbeat):
                self.published.append(self._received(self._event(heartbeat)))
            case SendControl(control=control):
                assert FROM_AGENT.validate_json(control.encode()) == control
            case _:
                pass
        return []

    def _written(self, rank: RankKey, ready: ShardReady) -> CheckpointShardWritten:
        return CheckpointShardWritten(
            job_id=rank.gang.job_id,
            attempt=rank.gang.attempt,
            step=ready.step,
            rank=rank.rank,
            world_size=ready.world_size,
            node_id=self._node.node_id,
            manifest=ready.manifest,
            shards=(ready.shard,),
            write_s=ready.write_s,
            blocked_s=ready.blocked_s,
            metrics=ready.metrics,
        )

    def _event(self, event: object) -> Envelope:
        return Envelope("i", "/a", self._at.utc, self._node.node_id, event)  # type: ignore[arg-type]

    def _received(self, envelope: Envelope) -> Received:
        topic = topic_of(envelope.type).value
        sent = encode(envelope, topic=topic)
        record = Record(topic, 0, 1, sent.key, sent.value, sent.headers, 0)
        received = receive(record)
        assert received.envelope.data == envelope.data
        return received
