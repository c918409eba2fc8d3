"""Rates are means over the newest 30 seconds of steps, whatever the clock and the values do."""

from __future__ import annotations

import pytest

from gangline_tracker.views.window import PART_MS, WINDOW_MS, Rates, StepSample, Window


def window(*samples: StepSample) -> Window:
    found = Window()
    for sample in samples:
        found.add(sample)
    return found


def paced(count: int, every_ms: int, start: int = 0) -> list[StepSample]:
    return [StepSample(start + at, at * every_ms, 100.0, 0.1, 0.5) for at in range(count)]


def test_rates_are_means_over_the_window() -> None:
    rates = window(*paced(200, 500)).rates()
    assert rates == Rates(pytest.approx(0.5), pytest.approx(100.0), pytest.approx(0.2))


def test_what_is_older_than_the_window_does_not_count() -> None:
    slow = [StepSample(at, at * 2000, 10.0) for at in range(100)]
    fast = [StepSample(100 + at, 200_000 + at * 100, 50.0) for at in range(1000)]
    rates = window(*slow, *fast).rates()
    assert rates.step_s == pytest.approx(0.1, rel=0.05)
    assert rates.tokens_per_s == pytest.approx(50.0)


def test_steps_that_take_longer_than_the_window_have_a_rate() -> None:
    rates = window(*paced(5, 4 * WINDOW_MS)).rates()
    assert rates.step_s == pytest.approx(4 * WINDOW_MS / 1000)


def test_a_single_step_has_the_time_that_it_reports() -> None:
    assert window(StepSample(1, 5, step_s=0.25)).rates().step_s == 0.25
    assert window(StepSample(1, 5)).rates() == Rates()


def test_memory_is_an_entry_a_second_whatever_the_pace() -> None:
    found = window(*paced(20_000, 7))
    assert len(found._parts) <= WINDOW_MS // PART_MS + 2
    still = window(*(StepSample(at, 0) for at in range(5000)))
    assert len(still._parts) == 1


def test_a_clock_that_is_set_back_begins_the_window_again() -> None:
    back = [StepSample(100 + at, at * 1000) for at in range(10)]
    rates = window(StepSample(1, 10**9), *back).rates()
    assert rates.step_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    "sample",
    [
        StepSample(1, 1, tokens_per_s=-5.0),
        StepSample(1, 1, tokens_per_s=1e300),
        StepSample(1, 1, data_wait_s=-1.0, step_s=1.0),
        StepSample(1, 1, data_wait_s=1.0, step_s=0.0),
        StepSample(1, 1, step_s=-1.0),
    ],
)
def test_values_that_are_no_rates_are_not_known(sample: StepSample) -> None:
    rates = window(sample).rates()
    assert rates.tokens_per_s is None
    assert rates.data_wait_share is None


def test_more_waiting_than_time_is_all_of_it() -> None:
    assert window(StepSample(1, 1, data_wait_s=9.0, step_s=1.0)).rates().data_wait_share == 1.0


def test_what_is_not_known_comes_from_before() -> None:
    before = Rates(1.0, 2.0, 0.5)
    assert Rates(tokens_per_s=3.0).or_else(before) == Rates(1.0, 3.0, 0.5)
