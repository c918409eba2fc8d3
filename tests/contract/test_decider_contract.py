"""The decider loop over both buses: a crash at any point loses nothing and doubles nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable, Iterator

import pytest

from gangline_bus.codec import decode
from gangline_bus.decider import DeciderLoop
from gangline_bus.decision import InvariantViolated
from gangline_bus.fold import LogBroken
from gangline_bus.ports import BusError, OutRecord, TopicPartition
from gangline_bus.snapshot import SnapshotHeader, Snapshots
from gangline_bus.state_json import Facts
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from support.harnesses.decider_world import (
    KAFKA_NIGHTLY,
    TEAMS,
    Seen,
    SimulatedCrash,
    Teams,
    World,
    all_seen,
    live,
    run_to_the_end,
    run_until,
    world,
)

__all__ = ["world"]  # a fixture is used by being in this module


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
    for _ in range(1000):
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
