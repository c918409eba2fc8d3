"""Effective training time: limits, the closed form against a replay and against step by step."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline_checkpoints.core.policy.ettr import (
    Costs,
    Parts,
    advised,
    expected,
    longest_down_s,
    replay,
)
from gangline_checkpoints.core.policy.interval import PRIOR, Save, advise, optimum_s

FREE = Costs(mttf_s=1000.0, save_s=0.0, commit_s=0.0, detect_s=0.0, restart_s=0.0)


def gaps(mttf_s: float, count: int, seed: int = 1) -> Iterator[float]:
    draw = random.Random(seed)
    return (draw.expovariate(1 / mttf_s) for _ in range(count))


def shares(parts: Parts) -> list[float]:
    return [
        part / parts.wall_s
        for part in (
            parts.useful_s,
            parts.saving_s,
            parts.lost_s,
            parts.detecting_s,
            parts.restarting_s,
        )
    ]


def test_without_failures_saves_alone_are_lost() -> None:
    never = Costs(mttf_s=1e15, save_s=3.0, commit_s=9.0, detect_s=60.0, restart_s=60.0)
    assert expected(never, 100.0).ettr == pytest.approx(0.97, abs=1e-6)


def test_saves_that_cost_nothing_lose_half_an_interval_a_failure() -> None:
    # x / (e^x - 1) = 1 - x / 2 + x^2 / 12 - ... with x = interval / mttf
    assert expected(FREE, 100.0).ettr == pytest.approx(1 - 0.05 + 0.01 / 12, abs=1e-6)
    assert expected(FREE, 0.001).ettr == pytest.approx(1.0, abs=1e-5)


def test_standing_still_alone() -> None:
    costs = Costs(mttf_s=1000.0, save_s=0.0, commit_s=0.0, detect_s=70.0, restart_s=30.0)
    parts = expected(costs, 1e-6)
    assert parts.ettr == pytest.approx(math.exp(-0.1), abs=1e-6)
    assert parts.restarting_s == pytest.approx(1000 * math.expm1(0.03))
    assert parts.detecting_s + parts.restarting_s == pytest.approx(1000 * math.expm1(0.1))


def test_an_interval_that_no_attempt_lives_to_see_gives_nothing() -> None:
    assert expected(FREE, 1e6).ettr == pytest.approx(0.0)


def test_it_is_dalys_where_a_save_counts_at_its_end() -> None:
    """Daly: a wall time of M e^(R/M) (e^((T+c)/M) - 1) for each T of work, T between two saves."""
    mttf_s, save_s, restart_s, between_s = 5000.0, 20.0, 90.0, 400.0
    costs = Costs(mttf_s, save_s, save_s, 0.0, restart_s)
    daly = mttf_s * math.exp(restart_s / mttf_s) * math.expm1((between_s + save_s) / mttf_s)
    # Of ours the first save of an attempt begins after T + c of work, and the others after T.
    found = expected(costs, between_s + save_s).ettr
    assert found == pytest.approx(between_s / daly, rel=0.01)
    assert found > between_s / daly


def test_the_advised_optimum_is_the_best_interval() -> None:
    costs = Costs(mttf_s=3600.0, save_s=2.0, commit_s=2.0, detect_s=1.0, restart_s=5.0)
    best_s = optimum_s(costs.save_s, costs.mttf_s) + costs.save_s
    best = expected(costs, best_s).ettr
    assert all(expected(costs, best_s * factor).ettr < best for factor in (0.8, 0.9, 1.1, 1.25))


COSTS = [
    Costs(mttf_s=28_440.0, save_s=0.2, commit_s=3.0, detect_s=60.0, restart_s=60.0),
    Costs(mttf_s=3_555.0, save_s=0.2, commit_s=3.0, detect_s=60.0, restart_s=60.0),
    Costs(mttf_s=40.0, save_s=0.1, commit_s=0.5, detect_s=0.2, restart_s=1.0),
    Costs(mttf_s=100.0, save_s=5.0, commit_s=8.0, detect_s=40.0, restart_s=90.0),
]


@pytest.mark.parametrize("costs", COSTS)
def test_closed_form_and_replay_agree_in_every_part(costs: Costs) -> None:
    interval_s = max(costs.save_s + optimum_s(costs.save_s, costs.mttf_s), 2 * costs.commit_s)
    parts = replay(costs, lambda *_: interval_s, gaps(costs.mttf_s, 40_000))
    assert shares(parts) == pytest.approx(shares(expected(costs, interval_s)), abs=0.004, rel=0.03)


def step_by_step(costs: Costs, interval_s: float, failures: list[float]) -> tuple[float, float]:
    """(progress, wall) of a run that moves on by one tick of a millisecond-long work at a time."""
    tick, now, kept = 0.001, 0.0, 0.0
    for gap_s in failures:
        fails = now + gap_s
        now = min(fails, now + costs.down_s) if now else now
        began, work, cost, saves = now, 0.0, 0.0, []
        while now + tick / 2 < fails:
            if now - began >= (len(saves) + 1) * interval_s - tick / 2:
                saves.append((now + costs.commit_s, work))
                cost = costs.save_s
            if cost > tick / 2:
                cost -= tick
            else:
                work += tick
            now += tick
        kept += max((done for at, done in saves if at <= fails), default=0.0)
        now = fails
    return kept, now


def test_replay_is_what_a_run_does_moment_by_moment() -> None:
    costs = Costs(mttf_s=4.0, save_s=0.1, commit_s=0.3, detect_s=0.2, restart_s=0.4)
    failures = list(gaps(costs.mttf_s, 25, seed=3))
    parts = replay(costs, lambda *_: 0.9, failures)
    kept_s, wall_s = step_by_step(costs, 0.9, failures)
    assert parts.wall_s == pytest.approx(wall_s)
    assert parts.useful_s == pytest.approx(kept_s, abs=0.01 * len(failures))


@given(
    st.floats(1.0, 1e5),
    st.floats(0.0, 5.0),
    st.floats(0.0, 50.0),
    st.floats(0.0, 500.0),
    st.floats(5.1, 1000.0),
    st.lists(st.floats(0.0, 1e5), max_size=20),
)
def test_no_second_is_lost_or_counted_twice(
    mttf_s: float, save_s: float, commit_s: float, down_s: float, interval_s: float, at: list[float]
) -> None:
    costs = Costs(mttf_s, save_s, commit_s, down_s / 2, down_s / 2)
    whole = expected(costs, interval_s)
    assert whole.wall_s == pytest.approx(mttf_s * math.exp(down_s / mttf_s), rel=1e-6)
    assert all(share >= 0 for share in shares(whole))
    parts = replay(costs, lambda *_: interval_s, at, rest_s=77.0)
    assert parts.wall_s == pytest.approx(sum(at) + 77.0)
    assert all(share >= -1e-9 for share in shares(parts))


def test_the_time_that_a_failure_may_take_is_the_targets() -> None:
    costs = COSTS[0]
    down_s = longest_down_s(costs, 110.0, 0.99)
    assert down_s is not None
    exact = Costs(costs.mttf_s, costs.save_s, costs.commit_s, 0.0, down_s)
    assert expected(exact, 110.0).ettr == pytest.approx(0.99)
    assert longest_down_s(COSTS[2], 10.0, 0.99) is None


def test_advice_that_learns_costs_little_against_the_right_rate() -> None:
    """The service's policy begins with its prior and sees failures four times as frequent."""
    gpus, save = 1024, Save(0.05, 20.0, 10.0)
    mttf_s = 7.9 * 3600 / 4
    costs = Costs(mttf_s, 0.05 + 2.0, 30.0, 60.0, 60.0)

    learned = advised([save], gpus)
    assert learned(0, 0.0) == advise([save], gpus, PRIOR.count / PRIOR.gpu_hours).interval_s
    right = advise([save], gpus, 4 * PRIOR.count / PRIOR.gpu_hours).interval_s
    ratio = replay(costs, learned, gaps(mttf_s, 5000)).ettr
    best = expected(costs, right).ettr
    assert ratio == pytest.approx(best, abs=0.003)


def test_an_interval_below_a_saves_cost_is_refused() -> None:
    with pytest.raises(ValueError, match="not above a save"):
        expected(COSTS[3], 5.0)
