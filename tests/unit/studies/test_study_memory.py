"""What is kept of studies that have ended, and for how long."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gangline_schemas.memory import REMEMBERED
from gangline_studies.core import evolve
from gangline_studies.core.state import CURVE_POINTS, CURVE_POINTS_ENDED
from support.builders.studies import Studies


def ended(made: Studies, study_id: str, trials: int = 2) -> None:
    made.create(study_id)
    for number in range(trials):
        made.run(number, {10: 2.0, 30: 1.5}, study_id=study_id)
    made.end(study_id)


def known(made: Studies) -> list[str]:
    assert made.state.studies.keys() == made.state.over.keys()
    return list(made.state.studies)


def test_an_ended_study_is_forgotten_once_another_ends_long_after() -> None:
    made = Studies()
    ended(made, "one")
    made.now += REMEMBERED - timedelta(hours=1)
    ended(made, "two")
    assert known(made) == ["one", "two"]
    made.now += timedelta(hours=2)
    ended(made, "three")
    assert known(made) == ["two", "three"]


def test_the_oldest_are_forgotten_if_ended_studies_have_too_many_trials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evolve, "MOST_ENDED_TRIALS", 5)
    made = Studies()
    made.create("runs")
    for study_id in ("one", "two", "three"):
        ended(made, study_id)
    assert known(made) == ["runs", "two", "three"]
    ended(made, "large", trials=7)
    assert known(made) == ["runs", "large"]


def test_a_curve_has_fewer_points_once_its_study_has_ended() -> None:
    made = Studies()
    made.create()
    made.run(0, {step: float(step) for step in range(1, 1001)})
    (live,) = made.state.over["lr-sweep-1"]
    assert CURVE_POINTS / 2 < len(live.curve) <= CURVE_POINTS
    made.end()
    (kept,) = made.state.over["lr-sweep-1"]
    assert CURVE_POINTS_ENDED / 2 < len(kept.curve) <= CURVE_POINTS_ENDED
    assert (kept.curve[0], kept.curve[-1]) == (live.curve[0], (1000, 1000.0))
    assert kept.values == live.values
