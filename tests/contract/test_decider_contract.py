"""The decider loop over both buses: a crash at any point loses nothing and doubles nothing."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

import pytest
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

from gangline_bus.codec import Received, decode, encode
from gangline_bus.decider import DeciderLoop, LoopSettings
from gangline_bus.decision import BaseDecider, Decision, Input, InvariantViolated, Refused
from gangline_bus.fold import LogBroken, fold_log
from gangline_bus.kafka import KafkaBus
from gangline_bus.kafka_writers import KafkaTransactionalWriter
from gangline_bus.memory import Broker
from gangline_bus.memory_broker import Faults
from gangline_bus.poison import DEATHS
from gangline_bus.ports import Bus, BusError, Note, OutRecord, TopicPartition
from gangline_bus.snapshot import SnapshotHeader, Snapshots
from gangline_bus.state_json import Facts
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
        **settings: object,
    ) -> DeciderLoop[Seen]:
        return DeciderLoop(
            self.connect(crash_at),
            decider or Teams(),
            lambda: datetime.now(UTC),
            names=self.names,
            settings=LoopSettings(batch=7, **settings),  # type: ignore[arg-type]
            snapshots=snapshots,
        )

    def request(self, *teams: tuple[str, int]) -> None:
        writer = self.bus.writer()
        for team, limit in teams:
            event = TeamConfigureRequested(config=TeamConfig(team=team, gpu_limit=limit))
            envelope = Envelope(derived_id(team, limit), "/test", START, team, event)
            writer.send(encode(envelope, topic=self.names.name(Topic.ADMIN)))
        assert writer.flush(10) == 0

    def send_raw(self, value: bytes, *headers: tuple[str, bytes]) -> None:
        writer = self.bus.writer()
        writer.send(OutRecord(self.names.name(Topic.ADMIN), b"k", value, headers))
        assert writer.flush(10) == 0

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
        for _ in range(200):
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


def run_until(loop: DeciderLoop[Seen], done: Callable[[Seen], bool], rounds: int = 150) -> None:
    for _ in range(rounds):
        if done(loop.state):
            return
        loop.cycle(0.1)
    raise AssertionError(f"not reached: {loop.state}")


def run_to_the_end(world: World, loop: DeciderLoop[Seen]) -> None:
    """Cycle until the offsets behind all requests are committed."""
    bus, places = world.bus, world.names.places(world.bus, Topic.ADMIN)
    group = f"{world.names.prefix}gangline.teams.0.inputs"
    for _ in range(150):
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


def test_inputs_become_events_with_dense_positions(world: World) -> None:
    world.request(*TEAMS)
    loop = world.process()
    loop.take_over()
    run_until(loop, all_seen)
    loop.close()
    envelopes = [decode_out(record) for record in world.read(world.names.name(Topic.QUOTA))]
    positions = [envelope.position for envelope in envelopes]
    assert [p.seq for p in positions if p] == list(range(40))
    assert {p.writer_epoch for p in positions if p} == {1}
    assert len({envelope.id for envelope in envelopes}) == 40


def test_replay_gives_the_live_state(world: World) -> None:
    world.request(*TEAMS)
    loop = world.process()
    loop.take_over()
    run_until(loop, all_seen)
    loop.close()
    assert world.fold() == loop.state


@pytest.mark.parametrize(
    "point",
    ["takeover", "takeover.fenced", "commit.begin", "commit.produced", "commit.ended"],
)
def test_a_crash_loses_nothing_and_doubles_nothing(world: World, point: str) -> None:
    world.request(*TEAMS)
    first = world.process(crash_at=point)
    with pytest.raises(SimulatedCrash):
        live(first)
    second = world.process()
    second.take_over()
    run_until(second, all_seen)
    second.close()
    state = world.fold()
    assert sorted(state.order) == sorted(team for team, _ in TEAMS)
    assert state == second.state


def test_a_zombie_that_comes_back_commits_nothing(world: World) -> None:
    zombie = world.process()
    zombie.take_over()
    heir = world.process()
    heir.take_over()
    world.request(*TEAMS)
    with pytest.raises(BusError):
        run_until(zombie, lambda _: False)
    run_until(heir, all_seen)
    heir.close()
    assert sorted(world.fold().order) == sorted(team for team, _ in TEAMS)


def test_offsets_of_inputs_that_led_to_nothing_are_saved_too(world: World) -> None:
    world.request(*TEAMS)
    loop = world.process(offsets_after_s=0.0)
    loop.take_over()
    run_until(loop, all_seen)
    world.request(*TEAMS)
    run_to_the_end(world, loop)
    assert len(loop.state.order) == 40


def test_what_cannot_be_read_goes_to_the_dlq_with_its_reason(world: World) -> None:
    world.send_raw(b"{nonsense", ("x", b"1"))
    loop = world.process()
    loop.take_over()
    written = 0
    for _ in range(150):
        written += loop.cycle(0.1)
        if written:
            break
    loop.close()
    (refused,) = world.read(world.names.dlq(world.names.name(Topic.ADMIN)))
    headers = dict(refused.headers)
    assert refused.value == b"{nonsense"
    assert b"ce_specversion is missing" in headers["gangline_dlq_error"]
    assert headers["gangline_dlq_topic"].endswith(b"gangline.admin")
    assert headers["gangline_dlq_offset"] == b"0"


def test_an_invalid_request_with_a_subject_can_be_answered_instead(world: World) -> None:
    world.send_raw(
        b'{"config": {"team": "a", "gpu_limit": -1}}',
        ("ce_specversion", b"1.0"),
        ("ce_id", b"1"),
        ("ce_source", b"/x"),
        ("ce_type", b"team.configure.requested"),
        ("ce_subject", b"a"),
    )
    loop = world.process()
    loop.take_over()
    run_until(loop, lambda state: state.refused == 1)
    loop.close()
    assert world.read(world.names.dlq(world.names.name(Topic.ADMIN))) == []


def test_inputs_are_not_decided_again_when_their_offsets_are_forgotten(world: World) -> None:
    """`a` has a limit of 1, then of 2; a successor that began at 0 would set it to 1 again."""
    world.request(("a", 1), ("b", 2), ("a", 2))
    loop = world.process()
    loop.take_over()
    run_until(loop, lambda state: len(state.order) == 3)
    loop.close()
    world.forget_offsets()

    heir = world.process()
    heir.take_over()
    world.request(("c", 3))
    run_until(heir, lambda state: "c" in state.limits)

    assert heir.state.order == [*loop.state.order, "c"]
    assert heir.state.limits == {"a": 2, "b": 2, "c": 3}


def test_too_many_refusals_are_counted_and_others_are_served(world: World) -> None:
    for _ in range(9):
        world.send_raw(b"nonsense")
    world.request(("late", 5))
    loop = world.process(dlq_limit=3, offsets_after_s=0.0)
    loop.take_over()
    run_to_the_end(world, loop)
    loop.close()
    assert loop.state.limits == {"late": 5}
    assert len(world.read(world.names.dlq(world.names.name(Topic.ADMIN)))) == 3


class Buggy(Teams):
    """Fails on some teams, as decide, by an invariant, or without a word."""

    def decide(self, state: Seen, soft: None, item: Input, now: datetime) -> Sequence[Decision]:
        if isinstance(item, Received):
            team = item.envelope.data.config.team
            if team == "raises":
                raise OverflowError("a value of the message")
            if team == "kills":
                raise SimulatedCrash(team)
        return super().decide(state, soft, item, now)


ONE_BY_ONE = 8
"""Deaths until a deadly input of 41 is found, in whatever order they come, a batch of 7 first."""


def lives(world: World, *, most: int) -> tuple[DeciderLoop[Seen], int]:
    """A process that is at the end of its inputs, and how many ended before it."""
    for life in range(most):
        loop = world.process(decider=Buggy(), offsets_after_s=0.0)
        loop.take_over()
        try:
            run_to_the_end(world, loop)
        except (OverflowError, SimulatedCrash, InvariantViolated):
            continue
        return loop, life
    raise AssertionError(f"{most} processes ended")


def test_an_input_that_kills_its_decider_is_passed_over(world: World) -> None:
    assert_passed_over(world, "kills", 1, ONE_BY_ONE, "the process ended without an error")


@KAFKA_NIGHTLY
@pytest.mark.parametrize(
    ("team", "limit", "most", "trace"),
    [
        ("raises", 1, 2, "OverflowError at "),
        ("unlucky", 13, ONE_BY_ONE, "InvariantViolated at "),
    ],
)
def test_an_input_that_ends_its_decider_is_passed_over(
    world: World, team: str, limit: int, most: int, trace: str
) -> None:
    assert_passed_over(world, team, limit, most, trace)


def assert_passed_over(world: World, team: str, limit: int, most: int, trace: str) -> None:
    """A team's request ends at most so many processes; all others are served."""
    world.request(*TEAMS[:9], (team, limit), *TEAMS[9:])
    loop, ended = lives(world, most=most + 1)
    loop.close()
    assert ended >= DEATHS
    assert loop.state.limits == dict(TEAMS)
    assert world.fold() == loop.state
    (record,) = world.read(world.names.dlq(world.names.name(Topic.ADMIN)))
    headers = dict(record.headers)
    assert headers["ce_subject"] == team.encode()
    assert headers["gangline_dlq_error"] == b"its decision ended the teams 2 times"
    assert headers["gangline_dlq_trace"].startswith(trace.encode())
    assert b"a value" not in headers["gangline_dlq_trace"]


class Hanging(Teams):
    """Waits in a decision until its process is ended."""

    def __init__(self) -> None:
        self.hangs, self.ended = threading.Event(), threading.Event()

    def decide(self, state: Seen, soft: None, item: Input, now: datetime) -> Sequence[Decision]:
        if isinstance(item, Received) and item.envelope.data.config.team == "hangs":
            self.hangs.set()
            assert self.ended.wait(60.0)
            raise SimulatedCrash("hangs")
        return super().decide(state, soft, item, now)


def hang_once(world: World) -> None:
    """A process that hangs, until a watchdog has noted where and ended it."""
    decider = Hanging()
    loop = world.process(decider=decider)
    loop.take_over()
    ends: list[BaseException] = []

    def cycle() -> None:
        try:
            run_until(loop, lambda _: False)
        except SimulatedCrash as error:
            ends.append(error)

    thread = threading.Thread(target=cycle)
    thread.start()
    assert decider.hangs.wait(60.0)
    loop.blame_hang(sys._current_frames().get(thread.ident or 0))
    decider.ended.set()
    thread.join(60.0)
    assert len(ends) == 1


def test_an_input_that_hangs_is_noted_from_the_watchdogs_thread(world: World) -> None:
    world.request(*TEAMS[:9], ("hangs", 1), *TEAMS[9:])
    for _ in range(DEATHS):
        hang_once(world)
    loop = world.process(decider=Hanging(), offsets_after_s=0.0)
    loop.take_over()
    run_to_the_end(world, loop)
    loop.close()
    assert loop.state.limits == dict(TEAMS)
    (record,) = world.read(world.names.dlq(world.names.name(Topic.ADMIN)))
    assert dict(record.headers)["gangline_dlq_trace"].startswith(b"hangs at ")


@KAFKA_NIGHTLY
def test_several_deadly_inputs_do_not_hide_each_other(world: World) -> None:
    world.request(*TEAMS[:20], ("raises", 1), ("raises", 2), ("unlucky", 13), *TEAMS[20:])
    loop, _ = lives(world, most=20)
    loop.close()
    assert loop.state.limits == dict(TEAMS)
    assert len(world.read(world.names.dlq(world.names.name(Topic.ADMIN)))) == 3


def test_whoever_waits_for_a_deadly_input_is_answered(world: World) -> None:
    """Here the refusal is decided for it: `Teams` answers what cannot be read."""
    world.request(("raises", 1))
    loop, ended = lives(world, most=5)
    loop.close()
    assert (ended, loop.state.refused) == (2, 1)


def test_a_violated_invariant_writes_nothing_of_the_batch(world: World) -> None:
    world.request(("unlucky", 13))
    loop = world.process()
    loop.take_over()
    with pytest.raises(InvariantViolated, match="thirteen"):
        run_until(loop, lambda _: False)
    assert world.fold() == Seen()


def last_of_a_log(world: World) -> OutRecord:
    """All teams are configured; the last record of the log, to be written once more."""
    world.request(*TEAMS)
    loop = world.process()
    loop.take_over()
    run_until(loop, all_seen)
    last = world.read(world.names.name(Topic.QUOTA))[-1]
    return OutRecord(last.topic, last.key, last.value, last.headers, 0)


def test_a_gap_in_the_own_log_stops_the_service(world: World) -> None:
    again = last_of_a_log(world)
    world.bus.transactional_writer(f"{world.names.prefix}forger").commit([again], {}, "g")
    with pytest.raises(LogBroken, match="seq is 39, expected 40"):
        world.process().take_over()


def test_a_transaction_that_nobody_ends_stops_the_service(world: World) -> None:
    again = last_of_a_log(world)
    hanging = world.connect("commit.produced").transactional_writer(f"{world.names.prefix}hanging")
    with pytest.raises(SimulatedCrash):
        hanging.commit([again], {}, "g")
    with pytest.raises(LogBroken, match=r"transaction at offset \d+ of \d+ was never ended"):
        world.process().take_over()


class SeenJson:
    """The state of `Teams` as one line."""

    version = 1
    form = "limits and order"

    def reads(self, version: int, form: str) -> bool:
        return (version, form) == (self.version, self.form)

    def copy(self, state: Seen) -> Facts:
        return {"limits": dict(state.limits), "order": dict.fromkeys(state.order)}

    def dump(self, facts: Facts) -> Iterator[bytes]:
        yield json.dumps([facts["limits"], list(facts["order"])]).encode()

    def load(self, lines: Iterable[bytes], version: int | None = None) -> Seen:
        limits, order = json.loads(b"".join(lines))
        return Seen(limits, order)


class Kept(dict[int, bytes]):
    """Snapshots in memory."""

    def newest(self, service: str, shard: int) -> Iterator[bytes]:
        return iter([self[seq] for seq in sorted(self, reverse=True)])

    def put(self, header: SnapshotHeader, data: bytes) -> None:
        self[header.next_seq] = data

    def snapshots(self) -> Snapshots[Seen]:
        return Snapshots(self, SeenJson(), every=10)


def test_an_heir_goes_on_from_a_snapshot(world: World) -> None:
    kept = Kept()
    leader = world.process(snapshots=kept.snapshots())
    leader.take_over()
    for first in range(0, 40, 5):
        world.request(*TEAMS[first : first + 5])
        run_until(leader, lambda state, wanted=first + 5: len(state.limits) >= wanted)  # type: ignore[misc]
    newest = max(kept)
    place = TopicPartition(world.names.name(Topic.QUOTA), 0)
    restored = kept.snapshots().restore(world.settle(), Teams(), place)
    assert restored is not None, "no snapshot holds"
    assert (newest >= 20, restored.next_seq) == (True, 40)

    heir = world.process(snapshots=kept.snapshots())
    heir.take_over()

    assert heir.next_seq == 40
    assert heir.state == restored.state
    world.request(("team-late", 7))
    run_until(heir, lambda state: "team-late" in state.limits)
    assert world.fold() == heir.state


def decode_out(record: OutRecord) -> Envelope:
    from gangline_bus.ports import Record

    return decode(Record(record.topic, 0, 0, record.key, record.value, record.headers, 0))


@KAFKA_NIGHTLY  # tests/e2e/test_bad_days.py stops a real one for 20 s
def test_a_broker_that_is_away_for_20_s_costs_nothing(
    request: pytest.FixtureRequest, world: World
) -> None:
    """The process waits or ends; it, or its successor, continues without a loss."""
    world.request(*TEAMS[:20])
    loop = world.process()
    loop.take_over()
    run_until(loop, lambda state: len(state.limits) >= 20)
    with away_for_20_s(request, world):
        loop = cycle_or_end(loop, world, rounds=50)
    world.request(*TEAMS[20:])
    for _ in range(300):
        if all_seen(loop.state):
            break
        loop = cycle_or_end(loop, world, rounds=1)
    assert all_seen(loop.state)
    loop.close()
    assert sorted(world.fold().order) == sorted(team for team, _ in TEAMS)


def cycle_or_end(loop: DeciderLoop[Seen], world: World, rounds: int) -> DeciderLoop[Seen]:
    """The loop after so many cycles; where an error ends its process, the next one's."""
    for _ in range(rounds):
        try:
            loop.cycle(0.1)
        except BusError:
            successor = world.process()
            with contextlib.suppress(BusError):
                successor.take_over()
            loop = successor
    return loop


@contextlib.contextmanager
def away_for_20_s(request: pytest.FixtureRequest, world: World) -> Iterator[None]:
    """The broker gives no answers within the block, and for 20 s where it is a real one."""
    if world.broker is not None:
        world.broker.down = True
        yield
        world.broker.down = False
        return
    pid = request.getfixturevalue("kafka").pid
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        yield
        time.sleep(max(0.0, 20.0 - (time.monotonic() - began)))
    finally:
        os.kill(pid, signal.SIGCONT)
