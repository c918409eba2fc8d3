"""A small decider, and a bus in memory or real with processes that run it and can crash."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

import pytest
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

from gangline_bus.codec import Received, encode
from gangline_bus.decider import DeciderLoop
from gangline_bus.decision import BaseDecider, Decision, Input, Refused
from gangline_bus.effects import EffectExecutor
from gangline_bus.fold import fold_log
from gangline_bus.kafka import KafkaBus
from gangline_bus.kafka_writers import KafkaTransactionalWriter
from gangline_bus.loop_settings import LoopSettings
from gangline_bus.memory import Broker
from gangline_bus.memory_broker import Faults
from gangline_bus.ports import Bus, Note, OutRecord, TopicPartition
from gangline_bus.snapshot import Snapshots
from gangline_bus.topics import TopicNames, create_topics
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope, derived_id
from gangline_schemas.events.admin import TeamConfigureRequested
from gangline_schemas.events.quota import RequestRefused, TeamConfigured
from gangline_schemas.team_limits import TeamConfig

_clients = itertools.count()
START = datetime(2026, 1, 1, tzinfo=UTC)


class SimulatedCrash(BaseException):
    """The process is gone here."""


@dataclass
class Seen:
    limits: dict[str, int] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    refused: int = 0


class Teams(BaseDecider[Seen, None]):
    """Records each configured team once; a limit of 13 breaks an invariant."""

    name = "teams"
    log = Topic.QUOTA
    inputs: tuple[Topic, ...] = (Topic.ADMIN,)

    def initial(self) -> Seen:
        return Seen()

    def decide(self, state: Seen, soft: None, item: Input, now: datetime) -> Sequence[Decision]:
        if isinstance(item, Refused) and item.subject:
            event = RequestRefused(
                request=item.event_type, target=item.subject, reason=item.error.reason
            )
            return [Decision(item.subject, event)]
        if not isinstance(item, Received):
            return []
        config = item.envelope.data.config
        if state.limits.get(config.team) == config.gpu_limit:
            return []
        return [Decision(config.team, TeamConfigured(config=config))]

    def evolve(self, state: Seen, decision: Decision, at: datetime) -> Seen:
        if isinstance(decision.event, RequestRefused):
            state.refused += 1
        elif isinstance(decision.event, TeamConfigured):
            config = decision.event.config
            state.limits[config.team] = config.gpu_limit
            state.order.append(config.team)
        return state

    def check(self, state: Seen) -> list[str]:
        return ["thirteen is not allowed"] if 13 in state.limits.values() else []


class CrashAt(Faults):
    """Ends the client the first time it reaches a point."""

    def __init__(self, point: str) -> None:
        self.point: str | None = point

    def at(self, point: str, client: str) -> None:
        if point == self.point:
            self.point = None
            raise SimulatedCrash(point)


class CrashingWriter(KafkaTransactionalWriter):
    """A Kafka writer whose process dies at a point of its first commit."""

    crash_at: str | None = None

    def commit(
        self,
        records: Sequence[OutRecord],
        offsets: Mapping[TopicPartition, int],
        group: str,
        note: Note | None = None,
    ) -> None:
        point, self.crash_at = self.crash_at, None
        if point == "commit.begin":
            raise SimulatedCrash(point)
        if point == "commit.produced":
            self._producer.begin_transaction()
            for record in records:
                self._produce(record)
            self._producer.flush(5)
            raise SimulatedCrash(point)
        super().commit(records, offsets, group, note)
        if point == "commit.ended":
            raise SimulatedCrash(point)


class CrashingKafkaBus(KafkaBus):
    """A connection whose writers crash at `point`, once."""

    point: str | None = None

    def transactional_writer(self, transactional_id: str) -> KafkaTransactionalWriter:
        point, self.point = self.point, None
        if point == "takeover":
            raise SimulatedCrash(point)
        writer = CrashingWriter(self, transactional_id)
        if point == "takeover.fenced":
            raise SimulatedCrash(point)
        writer.crash_at = point
        return writer


@dataclass
class World:
    """A bus with topics, and processes that run the decider on it."""

    connect: Callable[[str | None], Bus]
    names: TopicNames
    broker: Broker | None

    @cached_property
    def bus(self) -> Bus:
        """The test's own connection."""
        return self.connect(None)

    def process(
        self,
        crash_at: str | None = None,
        snapshots: Snapshots[Seen] | None = None,
        decider: Teams | None = None,
        executor: EffectExecutor | None = None,
        **settings: object,
    ) -> DeciderLoop[Seen]:
        return DeciderLoop(
            self.connect(crash_at),
            decider or Teams(),
            lambda: datetime.now(UTC),
            names=self.names,
            settings=LoopSettings(batch=7, **settings),  # type: ignore[arg-type]
            executor=executor,
            snapshots=snapshots,
        )

    def request(self, *teams: tuple[str, int]) -> None:
        writer = self.bus.writer()
        for team, limit in teams:
            writer.send(self.record(team, limit))
        assert writer.flush(60) == 0

    def record(self, team: str, limit: int) -> OutRecord:
        """A request for this team's limit."""
        event = TeamConfigureRequested(config=TeamConfig(team=team, gpu_limit=limit))
        envelope = Envelope(derived_id(team, limit), "/test", START, team, event)
        return encode(envelope, topic=self.names.name(Topic.ADMIN))

    def send_raw(self, value: bytes, *headers: tuple[str, bytes]) -> None:
        writer = self.bus.writer()
        writer.send(OutRecord(self.names.name(Topic.ADMIN), b"k", value, headers))
        assert writer.flush(60) == 0

    def settle(self) -> Bus:
        """The test's connection, once the markers of the decider's last commit are written."""
        self.bus.transactional_writer(f"{self.names.prefix}gangline.teams.0").close()
        return self.bus

    def read(self, topic: str, partitions: int = 1) -> list[OutRecord]:
        bus = self.settle()
        places = [TopicPartition(topic, index) for index in range(partitions)]
        ends = bus.end_offsets(places)
        reader = bus.reader("check")
        reader.assign(dict.fromkeys(places, 0))
        found: list[OutRecord] = []
        for _ in range(1000):
            if all(reader.positions()[place] >= ends[place] for place in places):
                return found
            found += [
                OutRecord(record.topic, record.key, record.value, record.headers)
                for record in reader.poll(1000, 0.1)
            ]
        raise AssertionError(f"{topic} was not read to its end")

    def forget_offsets(self) -> None:
        """The group's offsets are gone, as after `offsets.retention.minutes` without a commit."""
        group = f"{self.names.prefix}gangline.teams.0.inputs"
        bus = self.settle()
        if self.broker is not None:
            del self.broker.offsets[group]
        else:
            admin = AdminClient({"bootstrap.servers": bus.base["bootstrap.servers"]})  # type: ignore[attr-defined]
            admin.delete_consumer_groups([group])[group].result(10)
        places = self.names.places(bus, Topic.ADMIN)
        assert set(bus.committed(group, places).values()) == {None}

    def fold(self) -> Seen:
        place = TopicPartition(self.names.name(Topic.QUOTA), 0)
        return fold_log(self.settle(), Teams(), place).state


@pytest.fixture(params=["memory", "kafka"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    names = TopicNames(f"decider-{uuid.uuid4().hex[:8]}.")
    opened: list[Bus] = []
    broker = Broker() if request.param == "memory" else None
    if broker is not None:

        def connect(crash_at: str | None) -> Bus:
            if crash_at is not None:
                broker.faults = CrashAt(crash_at)
            return broker.connect(f"client-{next(_clients)}")
    else:
        kafka = request.getfixturevalue("kafka")

        def connect(crash_at: str | None) -> Bus:
            bus = CrashingKafkaBus(kafka.bootstrap, client=f"client-{next(_clients)}")
            bus.point = crash_at
            opened.append(bus)
            return bus

    world = World(connect, names, broker)
    create_topics(world.bus, names)
    yield world
    for bus in opened:
        bus.close()  # type: ignore[attr-defined]


KAFKA_NIGHTLY = pytest.mark.parametrize(
    "world", ["memory", pytest.param("kafka", marks=pytest.mark.nightly)], indirect=True
)
"""On Kafka in `make soak` alone: a neighbour shows what the real broker can do otherwise."""


def run_until(loop: DeciderLoop[Seen], done: Callable[[Seen], bool], rounds: int = 1000) -> None:
    for _ in range(rounds):
        if done(loop.state):
            return
        loop.cycle(0.1)
    raise AssertionError(f"not reached: {loop.state}")


def run_to_the_end(world: World, loop: DeciderLoop[Seen]) -> None:
    """Cycle until the offsets behind all requests are committed."""
    bus, places = world.bus, world.names.places(world.bus, Topic.ADMIN)
    group = f"{world.names.prefix}gangline.teams.0.inputs"
    for _ in range(1000):
        loop.cycle(0.1)
        saved, ends = bus.committed(group, places), bus.end_offsets(places)
        if all((saved[at] or 0) == ends[at] for at in places):
            return
    raise AssertionError(f"offsets were not saved: {saved} of {ends}")


TEAMS = tuple((f"team-{index}", index + 100) for index in range(40))


def live(loop: DeciderLoop[Seen]) -> None:
    """Take over and cycle until the process ends."""
    loop.take_over()
    run_until(loop, lambda _: False)


def all_seen(state: Seen) -> bool:
    return len(state.limits) >= len(TEAMS)
