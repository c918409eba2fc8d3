"""Inputs that end their decider: found, passed over, and noted in the DLQ, over both buses."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime

import pytest

from gangline_bus.codec import Received
from gangline_bus.decider import DeciderLoop
from gangline_bus.decision import Decision, EffectDone, Input, InvariantViolated, Tick
from gangline_bus.memory_clients import MemoryReader
from gangline_bus.poison import DEATHS
from gangline_bus.ports import OutRecord, TopicPartition
from gangline_bus.shard import Shard
from gangline_schemas.catalog import Topic
from support.harnesses.decider_world import (
    KAFKA_NIGHTLY,
    TEAMS,
    Seen,
    SimulatedCrash,
    Teams,
    World,
    run_to_the_end,
    run_until,
    world,
)

__all__ = ["world"]  # a fixture is used by being in this module


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


def note(world: World) -> str:
    """What the shard's next process would read."""
    shard = Shard(Teams(), world.names, 0)
    return world.bus.note(shard.notes, shard.log)


def test_an_orderly_stop_behind_a_backlog_leaves_no_note(world: World) -> None:
    world.request(*TEAMS)
    loop = world.process(offsets_after_s=0.0)
    loop.take_over()
    run_until(loop, lambda state: bool(state.limits))
    assert len(loop.state.limits) < len(TEAMS)
    assert note(world) == '{"lives":1}'
    loop.close()
    assert note(world) == ""


def test_a_process_has_caught_up_where_a_transaction_ends_its_inputs(world: World) -> None:
    """The last offset is that of a marker, which no reader gives."""
    writer = world.bus.transactional_writer("a-gateway")
    writer.commit([world.record(*team) for team in TEAMS], {}, "none")
    writer.close()
    loop = world.process(offsets_after_s=0.0)
    loop.take_over()
    run_to_the_end(world, loop)
    assert note(world) == ""
    loop.close()


class Noting(Buggy):
    """Also has signals, and notes for each Tick how many inputs were decided by then."""

    signals = (Topic.HEARTBEATS,)

    def __init__(self) -> None:
        self.ticks: list[int] = []

    def decide(self, state: Seen, soft: None, item: Input, now: datetime) -> Sequence[Decision]:
        if isinstance(item, Tick):
            self.ticks.append(len(state.limits))
        return super().decide(state, soft, item, now)


@pytest.mark.parametrize("world", ["memory"], indirect=True)
def test_signals_use_up_no_caution_and_hold_up_no_tick(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka gives the partitions in any order: here signals come first, and many of them."""

    def signals_first(reader: MemoryReader, positions: Mapping[TopicPartition, int]) -> None:
        assign(reader, positions)
        reader._positions = dict(sorted(positions.items(), reverse=True))

    assign = MemoryReader.assign
    monkeypatch.setattr(MemoryReader, "assign", signals_first)
    world.request(*TEAMS[:2], ("kills", 1))
    signals, decider = world.names.name(Topic.HEARTBEATS), Noting()
    for _ in range(3):
        loop = world.process(decider=decider, offsets_after_s=0.0, tick_interval_s=1e-6)
        loop.take_over()
        decider.ticks.clear()
        for number in range(100):
            world.bus.writer().send(OutRecord(signals, b"%d" % number, b"", ()))
        with pytest.raises(SimulatedCrash):
            run_to_the_end(world, loop)
        assert decider.ticks
    loop = world.process(decider=decider, offsets_after_s=0.0)
    loop.take_over()
    run_to_the_end(world, loop)
    assert loop.state.limits == dict(TEAMS[:2])


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


class OneEffect(Teams):
    """Asks for one effect, whose result it cannot decide upon."""

    def effects(self, state: Seen, soft: None) -> Mapping[str, object]:
        return {"work": "work"}

    def decide(self, state: Seen, soft: None, item: Input, now: datetime) -> Sequence[Decision]:
        if isinstance(item, EffectDone):
            raise OverflowError("a value of the result")
        return super().decide(state, soft, item, now)


class BadTicks(Teams):
    """Fails at Ticks while there is a team that it cannot bear."""

    def decide(self, state: Seen, soft: None, item: Input, now: datetime) -> Sequence[Decision]:
        if isinstance(item, Tick) and "unbearable" in state.limits:
            raise OverflowError("a value of the state")
        return super().decide(state, soft, item, now)


def test_ticks_that_raise_end_one_process_and_are_skipped_by_the_next(world: World) -> None:
    loop = world.process(decider=BadTicks(), tick_interval_s=0.0)
    loop.take_over()
    run_to_the_end(world, loop)
    world.request(("unbearable", 1))
    with pytest.raises(OverflowError):
        run_until(loop, lambda _: False)
    loop = world.process(decider=BadTicks(), tick_interval_s=0.0)
    loop.take_over()
    world.request(*TEAMS)
    run_to_the_end(world, loop)
    assert loop.state.limits.keys() == {"unbearable", *dict(TEAMS)}


class AtOnce:
    """Does each effect at once."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self._done: list[EffectDone] = []

    def submit(self, key: str, effect: object) -> None:
        self.submitted.append(key)
        self._done.append(EffectDone(key, effect))

    def completed(self) -> list[EffectDone]:
        found, self._done = self._done, []
        return found

    def drop(self, keys: AbstractSet[str]) -> None:
        pass


def test_a_result_of_an_effect_that_cannot_be_decided_is_skipped(world: World) -> None:
    executor = AtOnce()
    loop = world.process(decider=OneEffect(), executor=executor)
    loop.take_over()
    loop.cycle(0.0)
    world.request(*TEAMS)
    run_to_the_end(world, loop)
    assert loop.state.limits == dict(TEAMS)
    assert executor.submitted == ["work"]


def test_whoever_waits_for_a_deadly_input_is_answered(world: World) -> None:
    """Here the refusal is decided for it: `Teams` answers what cannot be read."""
    world.request(("raises", 1))
    loop, ended = lives(world, most=5)
    loop.close()
    assert (ended, loop.state.refused) == (2, 1)
