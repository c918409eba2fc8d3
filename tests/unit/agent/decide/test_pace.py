"""How fast a rank steps and since when it is quiet."""

from __future__ import annotations

import math

from gangline_schemas.events.heartbeats import RankActivity
from gangline_schemas.limits import SECONDS_MAX
from gangline_worker.agent.decide.pace import BUSY_WINDOW, ENOUGH, WINDOW, Pace


def stepping(*times_s: float) -> Pace:
    """A rank that trains, with these times between its steps."""
    pace, ended_ms = Pace(), 0
    pace.change_activity(RankActivity.TRAINING, 0.0)
    pace.stepped([0], 0.0)
    for time_s in times_s:
        ended_ms += round(time_s * 1000)
        pace.stepped([ended_ms], ended_ms / 1000)
    return pace


def test_who_never_said_anything_is_not_quiet() -> None:
    assert Pace().quiet_s(100.0) is None


def test_it_is_quiet_since_its_last_step() -> None:
    pace = stepping(1.0, 1.0)
    assert pace.quiet_s(5.0) == 3.0
    pace.change_activity(RankActivity.EVALUATING, 6.0)
    assert pace.quiet_s(7.0) == 1.0


def test_its_slow_steps_are_known_once_there_are_enough() -> None:
    assert stepping(*[0.5] * (ENOUGH - 1)).step_p99_s() is None
    assert stepping(*[0.5] * ENOUGH).step_p99_s() == 0.5


def test_one_slow_step_in_a_hundred_does_not_count() -> None:
    assert stepping(*[0.5] * 99, 30.0).step_p99_s() == 0.5
    assert stepping(*[0.5] * 98, 30.0, 30.0).step_p99_s() == 30.0


def test_old_steps_are_forgotten() -> None:
    assert stepping(*[30.0] * 20, *[0.5] * WINDOW).step_p99_s() == 0.5


def test_what_lies_between_is_no_step() -> None:
    pace = stepping(*[0.5] * ENOUGH)
    pace.change_activity(RankActivity.EVALUATING, 10.0)
    pace.change_activity(RankActivity.TRAINING, 70.0)
    pace.stepped([70_500, 71_000], 71.0)
    assert pace.step_p99_s() == 0.5


def test_a_clock_that_went_back_gives_no_negative_time() -> None:
    pace = stepping(*[0.5] * ENOUGH)
    pace.stepped([0], 6.0)
    assert pace.step_p99_s() == 0.5


def test_who_could_not_be_heard_is_forgiven() -> None:
    pace = stepping(1.0)
    pace.forgive(60.0)
    assert pace.quiet_s(61.0) == 1.0
    silent = Pace()
    silent.forgive(60.0)
    assert silent.quiet_s(61.0) is None


def test_what_a_rank_works_is_the_median_of_its_last_steps() -> None:
    pace = Pace()
    pace.worked([0.1] * (ENOUGH - 1))
    pace.worked([None, -1.0])
    assert pace.busy_s() is None
    pace.worked([0.1])
    assert pace.busy_s() == 0.1
    pace.worked([0.3] * BUSY_WINDOW)
    assert pace.busy_s() == 0.3


def test_what_no_step_can_have_worked_does_not_count() -> None:
    pace = Pace()
    pace.worked([1.7e308, math.inf, -1.0, 2 * SECONDS_MAX] * ENOUGH)
    assert pace.busy_s() is None
    pace.worked([SECONDS_MAX] * ENOUGH)
    assert pace.busy_s() == SECONDS_MAX
