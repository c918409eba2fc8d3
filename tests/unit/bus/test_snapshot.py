"""Snapshots of a decider's log: what is restored, what is passed over, what is written when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gangline_bus.codec import encode
from gangline_bus.decider import DeciderLoop
from gangline_bus.decision import Decision
from gangline_bus.loop_settings import LoopSettings
from gangline_bus.memory import Broker
from gangline_bus.ports import BusError, BusUnavailable
from gangline_bus.snapshot import SnapshotHeader, Snapshots, unpack
from gangline_bus.state_json import Converter, DataclassCodec
from gangline_bus.topics import TopicNames, create_topics
from gangline_quota.core.decide import Quota
from gangline_quota.core.snapshot import VERSION, codec, fingerprint
from gangline_quota.core.state import State
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.admin import TeamConfigureRequested
from support.builders.deciding import team

NAMES = TopicNames()
EVERY = 3
START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


class Kept:
    """A store in memory that keeps everything."""

    def __init__(self) -> None:
        self.held: dict[int, bytes] = {}

    def newest(self, service: str, shard: int) -> Iterator[bytes]:
        return iter([self.held[seq] for seq in sorted(self.held, reverse=True)])

    def put(self, header: SnapshotHeader, data: bytes) -> None:
        self.held[header.next_seq] = data


class Away:
    """A store that does not answer."""

    def newest(self, service: str, shard: int) -> Iterator[bytes]:
        raise OSError("away")

    def put(self, header: SnapshotHeader, data: bytes) -> None:
        raise OSError("away")


class Counting(Quota):
    """Counts what it folds; says that a state is broken that fewer than `expected` led to."""

    def __init__(self, expected: int = 0) -> None:
        super().__init__()
        self.expected = expected
        self.folded = 0

    def evolve(self, state: State, decision: Decision, at: datetime) -> State:
        self.folded += 1
        return super().evolve(state, decision, at)

    def check(self, state: State) -> list[str]:
        return ["it is broken"] if self.folded < self.expected else super().check(state)


class World:
    """A log with one event for each request, and processes that lead it in turn."""

    def __init__(self) -> None:
        self.now = START
        self.kept = Kept()
        self.erase()

    def erase(self) -> None:
        """A new, empty bus; the snapshots stay."""
        self.broker = Broker()
        create_topics(self.broker.connect("setup"), NAMES)
        self._asked = 0

    def lead(
        self,
        store: Kept | Away | None = None,
        *,
        kept_as: DataclassCodec[State] | None = None,
        every_s: float = 900.0,
        refold: bool = False,
        expected: int = 0,
        run: Callable[[Callable[[], None]], object] = lambda work: work(),
    ) -> DeciderLoop[State]:
        """A new leader."""
        self._decider = Counting(expected)
        loop = DeciderLoop(
            self.broker.connect("one"),
            self._decider,
            self._clock,
            settings=LoopSettings(batch=1),
            snapshots=Snapshots(
                store or self.kept,
                kept_as or codec(),
                every=EVERY,
                every_s=every_s,
                refold=refold,
                run=run,
            ),
        )
        loop.take_over()
        self.folded = self._decider.folded
        return loop

    def decide(self, loop: DeciderLoop[State], count: int) -> None:
        """So many events, one in each cycle."""
        writer = self.broker.connect("user").writer()
        for _ in range(count):
            self._asked += 1
            config = team(f"t{self._asked % 5}", limit=self._asked)
            request = TeamConfigureRequested(config=config)
            envelope = Envelope(f"r{self._asked}", "/t", self.now, config.team, request)
            writer.send(encode(envelope, topic=NAMES.name(Topic.ADMIN)))
            assert loop.cycle(0.0) == 1

    def print_of_the_log(self) -> str:
        """The fingerprint of the whole log's fold."""
        loop = DeciderLoop(self.broker.connect("other"), Quota(), self._clock)
        loop.take_over()
        return fingerprint(loop.state)

    def _clock(self) -> datetime:
        self.now += timedelta(microseconds=1)
        return self.now


@pytest.fixture
def world() -> World:
    return World()


def test_an_heir_folds_only_the_tail(world: World) -> None:
    world.decide(world.lead(), 20)
    newest = max(world.kept.held)

    heir = world.lead()

    assert newest == 18
    assert world.folded == 20 - newest
    assert heir.next_seq == 20
    assert fingerprint(heir.state) == world.print_of_the_log()


def test_a_snapshot_is_written_after_every_so_many_events(world: World) -> None:
    loop = world.lead()
    world.decide(loop, EVERY - 1)
    assert world.kept.held == {}
    world.decide(loop, 1)
    assert list(world.kept.held) == [EVERY]
    world.decide(loop, EVERY + 1)
    assert list(world.kept.held) == [EVERY, 2 * EVERY]


def test_a_snapshot_is_written_after_a_while_if_there_was_news(world: World) -> None:
    loop = world.lead(every_s=60.0)
    world.decide(loop, 1)
    world.now += timedelta(seconds=61)
    loop.cycle(0.0)
    assert list(world.kept.held) == [1]
    world.now += timedelta(seconds=61)
    loop.cycle(0.0)
    loop.cycle(0.0)
    assert list(world.kept.held) == [1], "nothing came since"
    world.decide(loop, 1)
    assert list(world.kept.held) == [1], "its time begins with the one before"
    world.now += timedelta(seconds=61)
    loop.cycle(0.0)
    assert list(world.kept.held) == [1, 2]


def test_a_stop_leaves_a_snapshot_of_the_end(world: World) -> None:
    loop = world.lead()
    world.decide(loop, EVERY + 1)
    loop.close()
    assert loop.settle(0.0)
    assert list(world.kept.held) == [EVERY, EVERY + 1]

    heir = world.lead()

    assert world.folded == 0
    assert fingerprint(heir.state) == world.print_of_the_log()
    heir.close()
    assert list(world.kept.held) == [EVERY, EVERY + 1], "nothing came since"


def test_an_heir_that_folded_a_long_log_keeps_what_it_folded(world: World) -> None:
    world.decide(world.lead(Kept()), 9)
    world.lead().cycle(0.0)
    assert list(world.kept.held) == [9]
    world.lead()
    assert world.folded == 0


def test_cycles_go_on_while_a_snapshot_is_written(world: World) -> None:
    waiting: list[Callable[[], None]] = []
    loop = world.lead(run=waiting.append)
    world.decide(loop, 20)
    assert len(waiting) == 1, "one at a time"
    waiting.pop()()
    assert list(world.kept.held) == [EVERY]

    heir = world.lead()

    assert world.folded == 20 - EVERY, "what came while it was written is not in it"
    assert fingerprint(heir.state) == world.print_of_the_log()


@pytest.mark.parametrize("place", [0, 70, 300, -1])
def test_a_flipped_bit_makes_the_heir_begin_with_an_older_one(world: World, place: int) -> None:
    world.decide(world.lead(), 8)
    older, newest = sorted(world.kept.held)
    damaged = bytearray(world.kept.held[newest])
    damaged[place] ^= 1
    world.kept.held[newest] = bytes(damaged)

    heir = world.lead()

    assert world.folded == 8 - older
    assert fingerprint(heir.state) == world.print_of_the_log()


@pytest.mark.parametrize("data", [b"", b"\n", b"not a snapshot\n{}\n"])
def test_what_is_no_snapshot_is_passed_over(world: World, data: bytes) -> None:
    world.decide(world.lead(), 9)
    world.kept.held = {9: data}

    heir = world.lead()

    assert world.folded == 9
    assert fingerprint(heir.state) == world.print_of_the_log()


def later(version: int, converters: Mapping[int, Converter] | None = None) -> DataclassCodec[State]:
    """The codec of a later version of quota."""
    return DataclassCodec(State, version=version, converters=converters)


def test_a_snapshot_of_the_version_before_is_converted(world: World) -> None:
    world.decide(world.lead(), 9)
    seen: list[str] = []

    def note(name: str, value: object) -> tuple[str, object]:
        seen.append(name)
        return name, value

    heir = world.lead(kept_as=later(VERSION + 1, {VERSION: note}))

    assert world.folded == 0
    assert "teams" in seen
    assert fingerprint(heir.state) == world.print_of_the_log()


def test_a_line_can_get_another_name_or_go(world: World) -> None:
    world.decide(world.lead(), 9)
    renamed = DataclassCodec(
        Renamed,
        version=2,
        converters={1: lambda name, value: ("limits", value) if name == "teams" else None},
    )
    _, lines = unpack(world.kept.held[9])
    state = renamed.load(lines, 1)
    assert sorted(state.limits) == [f"t{index}" for index in range(5)]


@pytest.mark.parametrize("versions", [(1, 3), (2, 1)], ids=["no converter", "rolled back"])
def test_a_state_format_that_is_not_known_is_passed_over(
    world: World, versions: tuple[int, int]
) -> None:
    writes, reads = versions
    known = {2: lambda name, value: (name, value)}
    world.decide(world.lead(kept_as=later(writes, known)), 9)

    heir = world.lead(kept_as=later(reads, known))

    assert world.folded == 9
    assert fingerprint(heir.state) == world.print_of_the_log()


def test_another_form_of_the_same_version_is_passed_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.decide(world.lead(), 9)
    other = codec()
    monkeypatch.setattr(other, "form", "another")
    world.lead(kept_as=other)
    assert world.folded == 9


def test_an_operator_can_have_the_whole_log_folded(world: World) -> None:
    world.decide(world.lead(), 9)
    heir = world.lead(refold=True)
    assert world.folded == 9
    world.decide(heir, 1)
    assert max(world.kept.held) == 10


@pytest.mark.parametrize("events", [2, 9, 30])
def test_a_snapshot_of_another_log_is_passed_over(world: World, events: int) -> None:
    world.decide(world.lead(), 9)
    world.erase()
    world.decide(world.lead(Kept()), events)

    heir = world.lead()

    assert world.folded == events
    assert fingerprint(heir.state) == world.print_of_the_log()


def test_a_state_that_breaks_an_invariant_is_passed_over(world: World) -> None:
    world.decide(world.lead(), 9)

    heir = world.lead(expected=9)

    assert world.folded >= 9
    assert fingerprint(heir.state) == world.print_of_the_log()


def test_without_its_store_a_leader_folds_and_decides(world: World) -> None:
    world.decide(world.lead(), 9)
    heir = world.lead(Away())
    assert world.folded == 9
    world.decide(heir, 9)
    assert fingerprint(heir.state) == world.print_of_the_log()


def test_a_bus_that_is_away_ends_the_takeover(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.decide(world.lead(), 9)

    def away(*_: object) -> object:
        raise BusUnavailable("away")

    monkeypatch.setattr("gangline_bus.memory.MemoryBus.end_offsets", away)
    with pytest.raises(BusError):
        world.lead()


def test_a_field_that_cannot_be_kept_is_named() -> None:
    with pytest.raises(TypeError, match=r"index: .* cannot be kept"):
        DataclassCodec(Unfit)


class Unfit:
    index: Broker


@dataclass
class Renamed:
    limits: dict[str, Any] = field(default_factory=dict)


def test_the_form_sees_a_field_and_its_type_and_no_words() -> None:
    forms = {DataclassCodec(kind).form for kind in (Renamed, OfNumbers, Longer)}  # type: ignore[arg-type]
    assert len(forms) == 3
    assert DataclassCodec(Renamed).form == DataclassCodec(Described).form  # type: ignore[arg-type]


@dataclass
class OfNumbers:
    limits: dict[str, int] = field(default_factory=dict)


@dataclass
class Longer:
    limits: dict[str, Any] = field(default_factory=dict)
    more: int = 0


@dataclass
class Described:
    """Words."""

    limits: dict[str, Any] = field(default_factory=dict)
