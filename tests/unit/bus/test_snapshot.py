"""Snapshots of a decider's log: what is restored, what is passed over, what is written when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from builders_deciding import team
from gangline_bus.codec import encode
from gangline_bus.decider import DeciderLoop, LoopSettings
from gangline_bus.decision import Decision
from gangline_bus.memory import Broker
from gangline_bus.ports import BusError, BusUnavailable
from gangline_bus.snapshot import Snapshots, code_hash
from gangline_bus.state_json import DataclassCodec
from gangline_bus.topics import TopicNames, create_topics
from gangline_quota.decide import Quota
from gangline_quota.snapshot import codec
from gangline_quota.state import State, fingerprint
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.requests import TeamConfigureRequested

NAMES = TopicNames()
EVERY = 3
START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


class Kept:
    """A store in memory that keeps everything."""

    def __init__(self) -> None:
        self.held: dict[int, bytes] = {}

    def newest(self, service: str, shard: int) -> Iterator[bytes]:
        return iter([self.held[seq] for seq in sorted(self.held, reverse=True)])

    def put(self, service: str, shard: int, next_seq: int, data: bytes) -> None:
        self.held[next_seq] = data


class Away:
    """A store that does not answer."""

    def newest(self, service: str, shard: int) -> Iterator[bytes]:
        raise OSError("away")

    def put(self, service: str, shard: int, next_seq: int, data: bytes) -> None:
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
        code: str = "this",
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
            snapshots=Snapshots(store or self.kept, codec(), code=code, every=EVERY, run=run),
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
            writer.send(encode(envelope, topic=NAMES.name(Topic.REQUESTS)))
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

    assert newest > EVERY
    assert world.folded == 20 - newest
    assert heir.next_seq == 20
    assert fingerprint(heir.state) == world.print_of_the_log()


def test_a_snapshot_is_written_after_every_so_many_events(world: World) -> None:
    loop = world.lead()
    world.decide(loop, EVERY)
    assert world.kept.held == {}, "its last event must stand behind its offset"
    world.decide(loop, 1)
    assert list(world.kept.held) == [EVERY + 1]
    world.decide(loop, EVERY + 1)
    assert list(world.kept.held) == [EVERY + 1, 2 * EVERY + 2]


def test_cycles_go_on_while_a_snapshot_is_written(world: World) -> None:
    waiting: list[Callable[[], None]] = []
    loop = world.lead(run=waiting.append)
    world.decide(loop, 20)
    assert len(waiting) == 1, "one at a time"
    waiting.pop()()
    assert list(world.kept.held) == [EVERY + 1]

    heir = world.lead()

    assert world.folded == 20 - (EVERY + 1), "what came while it was written is not in it"
    assert fingerprint(heir.state) == world.print_of_the_log()


@pytest.mark.parametrize("place", [0, 70, 300, -1])
def test_a_flipped_bit_makes_the_heir_begin_with_an_older_one(world: World, place: int) -> None:
    world.decide(world.lead(), 9)
    older, newest = sorted(world.kept.held)
    damaged = bytearray(world.kept.held[newest])
    damaged[place] ^= 1
    world.kept.held[newest] = bytes(damaged)

    heir = world.lead()

    assert world.folded == 9 - older
    assert fingerprint(heir.state) == world.print_of_the_log()


@pytest.mark.parametrize("data", [b"", b"\n", b"not a snapshot\n{}\n"])
def test_what_is_no_snapshot_is_passed_over(world: World, data: bytes) -> None:
    world.decide(world.lead(), 9)
    world.kept.held = {9: data}

    heir = world.lead()

    assert world.folded == 9
    assert fingerprint(heir.state) == world.print_of_the_log()


def test_a_snapshot_of_other_code_is_passed_over(world: World) -> None:
    world.decide(world.lead(code="earlier"), 9)

    world.lead(code="later")

    assert world.folded == 9


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


def test_the_code_hash_is_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "hashed_service"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "decide.py").write_text("LIMIT = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = code_hash("hashed_service")
    assert code_hash("hashed_service") == before
    (folder / "decide.py").write_text("LIMIT = 2\n")
    assert code_hash("hashed_service") != before
