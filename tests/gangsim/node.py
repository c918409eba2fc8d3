"""A machine: the real agent core, simulated ranks on its GPUs, a spool, and its network."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from gangline_bus.codec import encode
from gangline_bus.decision import Tick
from gangline_bus.ports import BusError, OutRecord, TopicPartition
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.envelope import Envelope, derived_id
from gangline_schemas.events.heartbeats import WorkerHeartbeat
from gangline_worker.agent.decide import effects, inputs
from gangline_worker.agent.decide.keys import Moment, RankKey
from gangsim.effects import NodeEffects
from support.builders.gangs import node_info

if TYPE_CHECKING:
    from gangsim.plan import NodePlan
    from gangsim.world import World

CONCERNS = (
    b"gang.allocated",
    b"gang.stopping",
    b"gang.released",
    b"job.resume.changed",
    b"checkpoint.requested",
)
TICK_S = 1.0
GUARD_SLACK_S = 2.0
LEAVE_GRACE_S = 10.0


class SimNode:
    """One machine. Its agent may crash and start again; `lost` machines never come back."""

    def __init__(self, world: World, plan: NodePlan) -> None:
        self.world = world
        self.plan = plan
        self.node_id = plan.node_id
        self.random = world.engine.stream(f"node/{plan.node_id}")
        self.outbox: list[tuple[OutRecord, bool]] = []
        self.cut_send = False
        self.cut_receive = False
        self.lost = False
        self.clock_offset_s = 0.0
        self.held_key: bytes | None = None
        self.holding = False
        self.process: AgentProcess | None = None
        self.starts = 0
        self._flush_due = False
        self.bus = world.broker.connect(f"{plan.node_id}/agent")
        for topic in (Topic.SCHEDULING, Topic.FAULTS):
            world.broker.wakes.setdefault(world.names.name(topic), []).append(self.wake)

    def boot(self) -> None:
        """Start the agent, once the bus answers."""
        if self.lost or self.process is not None:
            return
        if self.world.broker.down or self.cut_send or self.cut_receive:
            self.world.engine.after(1.0, self.boot)
            return
        self.starts += 1
        self.process = AgentProcess(self, f"{self.node_id}-{self.starts}")
        self.process.begin()

    def crash(self, *, lose: bool = False) -> None:
        """The agent dies, and its ranks with it; lost: the machine and its spool too."""
        if self.process is None and not lose:
            return
        self.world.engine.note("node.crash", self.node_id, "for good" if lose else "")
        if self.process is not None:
            self.process.die()
            self.process = None
        if lose:
            self.lost = True
            self.outbox.clear()
        else:
            self.world.engine.after(self.random.uniform(1.0, 6.0), self.boot)

    def leave(self) -> None:
        """The agent is stopped, with its ranks; later it is started again."""
        process = self.process
        if process is None:
            return
        process.give(inputs.Leave("maintenance", LEAVE_GRACE_S))
        leaves_s = self.world.engine.now_s + 2 * LEAVE_GRACE_S

        def look() -> None:
            if self.process is process and (
                process.core.gone or self.world.engine.now_s > leaves_s
            ):
                self.crash()
            elif self.process is process:
                self.world.engine.after(1.0, look)

        look()

    def wake(self) -> None:
        """Something new is in the logs."""
        if self.process is not None:
            self.process.wake()

    def spool(self, record: OutRecord) -> None:
        """Keep a record until it is safe on the bus."""
        self.outbox.append((record, False))
        self._flush_soon(self.random.uniform(0.002, 0.05))

    def _flush_soon(self, delay_s: float) -> None:
        if not self._flush_due:
            self._flush_due = True
            self.world.engine.after(delay_s, self.flush)

    def flush(self) -> None:
        """Send in order; what was not acknowledged is sent again."""
        self._flush_due = False
        if self.lost or not self.outbox:
            return
        if self.cut_send or self.world.broker.down:
            self._flush_soon(1.0)
            return
        left: list[tuple[OutRecord, bool]] = []
        writer = self.bus.writer()
        for record, unacked in self.outbox:
            if self.holding and self.held_key is None:
                self.held_key = record.key
            if self.holding and record.key == self.held_key:
                left.append((record, unacked))
                continue
            if not (self.cut_receive and unacked):
                writer.send(record)
            if self.cut_receive:
                left.append((record, True))
        self.outbox = left
        if left:
            self._flush_soon(1.0)


CPUS = 8.0
"""Of each machine."""


class AgentProcess:
    """One incarnation of a node's agent: the core and what it acts with."""

    def __init__(self, node: SimNode, incarnation: str) -> None:
        self.node = node
        self.world = node.world
        self.engine = node.world.engine
        self.alive = True
        self.paused = False
        self._waiting: list[Callable[[], None]] = []
        info = node_info(
            node.node_id,
            node.plan.gpus,
            model="cpu",
            gpu_memory_gb=8,
            incarnation=incarnation,
            rack=node.plan.rack,
            cpu_only=not node.plan.gpus,
            cpus=CPUS,
            memory_gb=256,
            rendezvous_ports=tuple(range(21000, 21016)),
        )
        self.core = self.world.parts.agent(info, self.world.parts.limits)
        self.acked_s = self.engine.now_s
        self.effects = NodeEffects(self)
        self._read_due = False
        self._missed = False
        self._reader = node.bus.reader("agent")
        places = [
            TopicPartition(self.world.names.name(topic), 0)
            for topic in (Topic.SCHEDULING, Topic.FAULTS)
        ]
        self._reader.assign(node.bus.end_offsets(places))

    def begin(self) -> None:
        """Join."""
        self.engine.note("agent", self.core.incarnation)
        self._act(self.core.start(self._moment()))
        self.engine.after(self.node.random.uniform(0.0, TICK_S), self._tick)

    def die(self) -> None:
        """The process is gone and the kernel kills its ranks."""
        self.alive = False
        self.effects.die()

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later, if this process still lives then."""

        def act() -> None:
            if self.paused:
                self._waiting.append(act)
            elif self.alive:
                action()

        self.engine.after(delay_s, act)

    def pause(self) -> None:
        """The agent's process stands still, its ranks don't: their guard watches its lease."""
        if self.alive and not self.paused:
            self.paused = True
            self.engine.note("agent.pause", self.core.incarnation)
            self._guard()

    def resume(self) -> None:
        """All that happened meanwhile comes at once, in its order."""
        if not self.paused:
            return
        self.paused = False
        self.engine.note("agent.resume", self.core.incarnation)
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            action()

    def _guard(self) -> None:
        if not self.alive or not self.paused:
            return
        if self.engine.now_s > self.core.member.lease_ends_s + GUARD_SLACK_S:
            for rank in list(self.effects.ranks.values()):
                self.engine.count("guard.kills")
                rank.end(signal=9)
        self.engine.after(1.0, self._guard)

    def give(self, item: inputs.Input) -> None:
        """An input for the core, and what follows."""
        if self.paused:
            self._waiting.append(lambda: self.give(item))
        elif self.alive:
            self._act(self.core.handle(item, self._moment()))

    def wake(self) -> None:
        """Read the logs soon."""
        if not self._read_due:
            self._read_due = True
            self.later(self.node.random.uniform(0.005, 0.06), self._read)

    def _read(self) -> None:
        self._read_due = False
        self._missed = self.node.cut_receive or self.world.broker.down
        if self._missed:
            return  # the tick looks again
        for record in self._reader.poll(1000, 0.0):
            kind = next((value for name, value in record.headers if name == "ce_type"), b"")
            if kind in CONCERNS:
                self.give(self.world.receive(record))

    def _tick(self) -> None:
        self.give(Tick())
        if self._missed:
            self.wake()
        self.later(TICK_S, self._tick)

    def _moment(self) -> Moment:
        utc, off_s = self.engine.utc, self.node.clock_offset_s
        return Moment(self.engine.now_s, utc + timedelta(seconds=off_s) if off_s else utc)

    def _act(self, decided: list[effects.Effect]) -> None:
        for effect in decided:
            match effect:
                case effects.Publish():
                    self._publish(effect)
                case effects.SendHeartbeat():
                    self._heartbeat(effect.heartbeat)
                case effects.Note():
                    self.engine.note("agent.note", self.core.incarnation, effect.event)
                    self.engine.count(effect.event)
                case _:
                    self.effects.execute(effect)

    def _publish(self, item: effects.Publish) -> None:
        topic = topic_of(item.event.type)
        if topic is Topic.STEPS:
            return
        self.node.spool(
            self._record(
                topic, item.subject, item.event, derived_id(item.event.type, *item.identity)
            )
        )

    def _heartbeat(self, beat: WorkerHeartbeat) -> None:
        node, silences = self.node, self.world.silences
        refused = any(silence.detail == "lost" for silence in silences)
        if node.cut_send or refused or self.world.broker.down:
            return
        identity = derived_id(beat.type, beat.incarnation, beat.sequence)
        try:
            node.bus.writer().send(self._record(Topic.HEARTBEATS, node.node_id, beat, identity))
        except BusError:
            return
        if silences:
            self.world.unread[beat.incarnation] = None
        else:
            self.world.heard[beat.incarnation] = self.engine.now_s
        if not node.cut_receive:
            sent_s, incarnation = self.engine.now_s, beat.incarnation
            self.later(node.random.uniform(0.003, 0.04), lambda: self._acked(incarnation, sent_s))

    def _acked(self, incarnation: str, sent_s: float) -> None:
        self.acked_s = max(self.acked_s, sent_s)
        self.give(inputs.HeartbeatAcked(incarnation, sent_s))

    def _record(self, topic: Topic, subject: str, event: object, identity: str) -> OutRecord:
        envelope = Envelope(
            id=identity,
            source=f"/gangline/agent/{self.node.node_id}",
            time=self.engine.utc,
            subject=subject,
            data=event,  # type: ignore[arg-type]
        )
        return encode(envelope, topic=self.world.names.name(topic))

    def rank(self, key: RankKey) -> object:
        """The process of a rank, if there is one."""
        return self.effects.ranks.get(key)
