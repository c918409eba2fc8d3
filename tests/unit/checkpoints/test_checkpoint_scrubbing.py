"""Which checkpoint is read again and when, and what follows from what was read."""

from __future__ import annotations

import pytest

from gangline_checkpoints.core.decide import CheckpointDecider
from gangline_checkpoints.core.model import Away, Corrupt, Scrubbed, StepId
from gangline_checkpoints.core.policy.scrubbing import AWAY_S, Scrubbing
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.snapshot import codec, fingerprint
from gangline_checkpoints.core.state import CheckpointState
from gangline_schemas.base import Event
from gangline_schemas.checkpoint_policy import Retention
from gangline_schemas.events.checkpoints import (
    CheckpointCorrupted,
    CheckpointScrubbed,
    EffectDeferred,
    ScrubBegun,
)
from gangline_schemas.events.scheduling import ReleaseReason
from gangline_storage.pace import Pace
from support.builders.checkpoints import (
    JOB,
    allocated,
    checkpoint_run,
    commit,
    could_not_start,
    ref,
    released,
)
from support.harnesses.decider_run import DeciderRun

DAY_S = 24 * 3600.0
RIGHT = Scrubbed(100, 0.5)


def key(step: int) -> str:
    return f"scrub:{JOB}:1:{step}"


def with_checkpoints(*steps: int) -> DeciderRun[CheckpointState, Reports]:
    run = checkpoint_run()
    run.feed(allocated(keep=Retention(latest=10)))
    for step in steps:
        commit(run, step)
    return run


def begun(events: list[Event]) -> list[int]:
    return [event.step for event in events if isinstance(event, ScrubBegun)]


def test_it_is_due_a_period_after_it_was_found_right() -> None:
    run = with_checkpoints(10)
    assert run.tick(DAY_S - 1) == []
    assert begun(run.tick(1)) == [10]
    assert sorted(run.effects()) == [key(10)]
    assert run.tick(DAY_S) == []  # it is being read
    assert run.done(key(10), RIGHT) == [
        CheckpointScrubbed(job_id=JOB, attempt=1, step=10, size_bytes=100, read_s=0.5)
    ]
    assert run.effects() == {}
    assert run.tick(DAY_S - 1) == []
    assert begun(run.tick(1)) == [10]


def test_one_at_a_time_and_first_what_was_right_longest_ago() -> None:
    run = with_checkpoints(10)
    run.tick(1)
    commit(run, 20)
    run.tick(1)
    commit(run, 30)
    read = []
    run.tick(DAY_S)
    while run.effects():
        [name] = run.effects()
        read.append(name)
        run.done(name, RIGHT)
        assert run.tick(9.0) == []  # nothing so soon after the last one
        run.tick(1.0)
    assert read == [key(10), key(20), key(30)]


def test_two_events_a_checkpoint_and_period_are_all_that_the_log_gets() -> None:
    run = with_checkpoints(*range(10, 60, 10))
    before = len(run.log)
    for _ in range(4 * 24 * 6):  # four days, a tick each ten minutes
        run.tick(600.0)
        for name in run.effects():
            run.done(name, RIGHT)
    assert len(run.log) - before <= 2 * 5 * 4
    assert len(run.events(CheckpointScrubbed)) >= 5 * 3


def test_a_corrupted_one_is_named_and_not_read_again_and_an_older_one_stands_in() -> None:
    run = with_checkpoints(10, 20)
    run.tick(DAY_S)
    run.done(key(10), RIGHT)
    run.tick(10.0)
    [event] = run.done(key(20), Corrupt("the/key", "holds 1 of 2 bytes"))
    assert event == CheckpointCorrupted(
        job_id=JOB, attempt=1, step=20, key="the/key", reason="holds 1 of 2 bytes"
    )
    assert [(item.step, item.healthy) for item in run.state.jobs[JOB].kept] == [
        (10, True),
        (20, False),
    ]
    assert run.effects() == {}
    read = set()
    for _ in range(100):
        run.tick(DAY_S / 4)
        read |= set(run.effects())
        for name in run.effects():
            run.done(name, RIGHT)
    assert read == {key(10)}


def test_a_store_that_is_away_is_left_alone_for_a_while() -> None:
    run = with_checkpoints(10)
    run.tick(DAY_S)
    [event] = run.done(key(10), Away("no answer"))
    assert isinstance(event, EffectDeferred)
    assert (event.effect, event.reason) == ("scrub", "no answer")
    assert run.effects() == {}
    assert run.tick(AWAY_S - 1) == []
    assert begun(run.tick(1)) == [10]


def test_one_that_the_store_never_gives_keeps_no_other_from_being_read() -> None:
    run = with_checkpoints(10, 20, 30)
    run.tick(DAY_S)
    read: list[str] = []
    for _ in range(4):
        [name] = run.effects()
        read.append(name)
        run.done(name, Away("no answer") if name == key(10) else RIGHT)
        run.tick(AWAY_S)
    assert read == [key(10), key(20), key(30), key(10)]


def test_what_is_deleted_meanwhile_is_not_called_corrupted() -> None:
    run = checkpoint_run()
    run.feed(allocated(keep=Retention(latest=1)))
    commit(run, 10)
    run.tick(DAY_S)
    assert key(10) in run.effects()
    commit(run, 20)  # and so 10 goes
    assert key(10) not in run.effects()
    assert run.done(key(10), Corrupt("the/key", "is missing")) == []
    assert set(run.state.verified_at) == {(JOB, 1, 20)}


def test_an_ended_jobs_checkpoints_are_read_too() -> None:
    run = with_checkpoints(10)
    run.feed(released(reason=ReleaseReason.SUCCEEDED))
    run.tick(700.0)
    run.feed(allocated(job_id="job-2"))
    assert JOB not in run.state.active
    assert begun(run.tick(DAY_S)) == [10]
    [effect] = run.effects().values()
    assert (effect.id, effect.world_size) == (StepId(1, 10), 2)  # type: ignore[attr-defined]


def test_a_takeover_reads_the_same_one_again() -> None:
    run = with_checkpoints(10, 20)
    run.tick(DAY_S)
    before = run.effects()
    run.take_over()
    assert run.effects() == before
    run.done(key(10), RIGHT)
    run.take_over()
    assert begun(run.tick(10.0)) == [20]


def test_a_snapshot_remembers_what_is_being_read_and_what_was_measured() -> None:
    run = with_checkpoints(10, 20)
    run.feed(released())
    run.feed(allocated(2, keep=Retention(latest=10)))
    run.tick(DAY_S)
    states = codec()
    held = states.copy(run.state)
    before, effects = fingerprint(run.state), run.effects()
    run.done(key(10), RIGHT)
    restored = states.load(b"".join(states.dump(held)).splitlines(keepends=True))
    assert fingerprint(restored) == before != fingerprint(run.state)
    assert run.decider.effects(restored, run.soft) == effects
    assert restored.failures.count == 1
    assert len(restored.jobs[JOB].saves) == 2


def test_a_node_that_finds_the_damage_first_ends_the_reading() -> None:
    run = with_checkpoints(10)
    run.tick(DAY_S)
    damaged = ref(1, 10).commit_key.replace("COMMIT.json", "rank-00000.bin")
    run.feed(could_not_start(damaged))
    assert run.events(CheckpointCorrupted)
    assert run.effects() == {}


def test_a_period_of_zero_is_never() -> None:
    run = DeciderRun(CheckpointDecider(scrubbing=Scrubbing(period_s=0.0)), fingerprint)
    run.feed(allocated())
    commit(run, 10)
    assert run.tick(1000 * DAY_S) == []


class Clock:
    """Time that passes only by pauses and on demand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize("busy_s", [0.0, 0.05, 0.1, 0.5])
def test_no_more_bytes_a_second_pass_than_are_allowed(busy_s: float) -> None:
    clock = Clock()
    pace = Pace(1000.0, clock=lambda: clock.now_s, pause=clock.pause)
    pace.begin()
    started = clock.now_s
    for _ in range(50):
        clock.now_s += busy_s  # reading itself
        pace.spend(100)
    assert clock.now_s - started == pytest.approx(max(50 * 100 / 1000.0, 50 * busy_s))


def test_a_long_rest_is_not_made_up_for() -> None:
    clock = Clock()
    pace = Pace(1000.0, clock=lambda: clock.now_s, pause=clock.pause)
    clock.now_s += 1000.0
    pace.begin()
    started = clock.now_s
    pace.spend(2000)
    assert clock.now_s - started == pytest.approx(2.0)
