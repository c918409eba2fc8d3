"""The account of a run with failures: one that was made by hand; nothing is left over."""

from __future__ import annotations

import pytest

from bench.ettr_account import Account, Kill, Saved, Step, account

STEPS = [
    # saved at step 10; the step beside the save takes 1.5 s, the others 1 s
    Step(1, 10, 100.0), Step(1, 11, 101.5), Step(1, 12, 102.5), Step(1, 13, 103.5),
    # saved at step 13
    Step(1, 14, 105.0), Step(1, 15, 106.0),
    # killed at 106.4, known at 106.6; back from step 13 with its first step at 109.6
    Step(2, 14, 109.6), Step(2, 15, 110.6), Step(2, 16, 111.6),
]  # fmt: skip
SAVES = [Saved(1, 10, 0.3, 100.9), Saved(1, 13, 0.2, 104.1)]
KILLS = [Kill(1, 106.4, 106.6)]


@pytest.fixture
def found() -> Account:
    return account(STEPS, SAVES, KILLS, mttf_s=40.0)


def test_each_second_has_its_place(found: Account) -> None:
    parts = found.parts
    assert (found.step_s, found.progress) == (pytest.approx(1.0), 6)
    assert parts.useful_s == pytest.approx(6.0)
    assert parts.saving_s == pytest.approx(1.0)
    assert parts.lost_s == pytest.approx(2 * 1.0 + 0.4)
    assert parts.detecting_s == pytest.approx(0.2)
    assert parts.restarting_s == pytest.approx(2.0)
    assert parts.wall_s == pytest.approx(11.6)


def test_what_a_prediction_needs(found: Account) -> None:
    costs = found.costs
    assert (costs.mttf_s, costs.save_s) == (40.0, pytest.approx(0.5))
    assert costs.commit_s == pytest.approx((0.9 + 0.6) / 2)
    assert (costs.detect_s, costs.restart_s) == (pytest.approx(0.2), pytest.approx(2.0))
    assert found.interval_s == pytest.approx(3.5)
    assert found.gaps == pytest.approx((6.4,))
    assert found.rest_s == pytest.approx(5.2)


def test_a_run_without_a_failure_is_refused() -> None:
    with pytest.raises(ValueError, match="too little"):
        account(STEPS[:6], SAVES, [], mttf_s=40.0)
