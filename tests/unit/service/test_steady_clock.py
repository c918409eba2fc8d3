"""A jump of the clock counts only once it has lasted; until then time continues as it did."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gangline_service.steady_clock import JUMP, LASTING, SteadyClock

START = datetime(2026, 11, 24, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DAYS = timedelta(days=2)


class Machine:
    """A machine whose clock is off by so much."""

    def __init__(self) -> None:
        self.real, self.off = START, timedelta(0)
        self.clock = SteadyClock(self.wall, self.elapsed_s)

    def wall(self) -> datetime:
        return self.real + self.off

    def elapsed_s(self) -> float:
        return (self.real - START).total_seconds() + 1234.5

    def after(self, wait: timedelta, off: timedelta | None = None) -> timedelta:
        """Time passes, and maybe the clock jumps; by how much the shown time is wrong then."""
        self.real += wait
        if off is not None:
            self.off = off
        return self.clock() - self.real


def test_it_follows_a_clock_that_is_slewed() -> None:
    machine = Machine()
    assert machine.after(MINUTE, timedelta(seconds=3)) == timedelta(seconds=3)
    assert machine.after(MINUTE, timedelta(seconds=-4)) == timedelta(seconds=-4)


def test_a_tick_two_days_ahead_counts_for_one_interval() -> None:
    machine = Machine()
    machine.after(MINUTE)
    assert machine.after(MINUTE, DAYS) == timedelta(0)
    assert machine.after(MINUTE, timedelta(0)) == timedelta(0)


def test_so_does_one_that_is_two_days_behind() -> None:
    machine = Machine()
    assert machine.after(MINUTE, -DAYS) == timedelta(0)
    assert machine.after(MINUTE, timedelta(0)) == timedelta(0)


def test_a_jump_that_lasts_is_believed() -> None:
    machine = Machine()
    assert machine.after(MINUTE, DAYS) == timedelta(0)
    assert machine.after(LASTING - timedelta(seconds=1)) == timedelta(0)
    assert machine.after(timedelta(seconds=1)) == DAYS
    assert machine.after(MINUTE) == DAYS


def test_two_jumps_in_turn_are_two_jumps() -> None:
    machine = Machine()
    machine.after(MINUTE, DAYS)
    machine.after(LASTING - timedelta(seconds=1))
    assert machine.after(timedelta(seconds=1), 2 * DAYS) == timedelta(0)
    assert machine.after(LASTING) == 2 * DAYS


def test_the_time_never_goes_back_when_the_clock_is_set_back_a_little() -> None:
    machine = Machine()
    told = machine.clock()
    machine.after(timedelta(seconds=1), -JUMP)
    assert machine.clock() >= told


def test_a_clock_that_was_set_right_backwards_is_believed_after_a_while() -> None:
    machine = Machine()
    machine.off = DAYS
    machine.clock = SteadyClock(machine.wall, machine.elapsed_s)
    assert machine.after(MINUTE, timedelta(0)) == DAYS
    assert machine.after(LASTING) == timedelta(0)
