"""What is kept of studies that have ended, and for how long."""

from __future__ import annotations

from collections.abc import ItemsView
from datetime import timedelta

import pytest

from gangline_schemas.events.studies import TrialMeasured
from gangline_schemas.memory import REMEMBERED
from gangline_studies.core import forgetting, suggesting
from gangline_studies.core.state import CURVE_POINTS, CURVE_POINTS_ENDED, Trial
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
    monkeypatch.setattr(forgetting, "MOST_ENDED_TRIALS", 5)
    made = Studies()
    made.create("runs")
    for study_id in ("one", "two", "three"):
        ended(made, study_id)
    assert known(made) == ["runs", "two", "three"]
    ended(made, "large", trials=7)
    assert known(made) == ["runs", "large"]


def test_the_oldest_are_forgotten_if_files_of_ended_studies_are_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forgetting, "MOST_ENDED_BYTES", 2000)
    made = Studies()
    for study_id in ("one", "two", "three"):
        made.create(study_id, size_bytes=900)
        made.end(study_id)
    assert known(made) == ["two", "three"]


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


def test_of_a_population_the_newest_rungs_are_kept() -> None:
    made = Studies()
    pbt = {"kind": "pbt", "interval_steps": 1}
    made.create(stopping=pbt, sampler="auto", limits={"trials": 8, "parallel": 4})
    made.create("others", stopping=pbt, sampler="auto", limits={"trials": 8, "parallel": 4})
    for study_id in ("lr-sweep-1", "others"):
        made.run(0, {10: 1.0}, study_id=study_id, end="")
    of = {"study_id": "lr-sweep-1", "number": 0, "part": 1, "values": {"eval_loss": 1.0}}
    for step in (*range(11, 3000), 10**9):
        made.add(TrialMeasured(**of, step=step, rungs=(step - 1,)))
        own = [key for key in made.state.rungs if key[0] == "lr-sweep-1"]
        assert len(own) <= forgetting.RUNGS_KEPT + forgetting.RUNGS_AT_ONCE
    assert [key for key in made.state.rungs if key[0] != "lr-sweep-1"] == [("others", 0, 0)]


class Counted(dict[tuple[str, int], Trial]):
    """Counts the trials that are passed over."""

    passed = 0

    def items(self) -> ItemsView[tuple[str, int], Trial]:
        self.passed += len(self)
        return super().items()


def test_open_trials_are_passed_over_once_however_many_studies_ask() -> None:
    made = Studies()
    for study_id in ("one", "two", "three"):
        made.create(study_id)
        made.run(0, {10: 2.0}, study_id=study_id, end="paused")
    made.state.trials = trials = Counted(made.state.trials)
    asked = suggesting.wanted(made.state).values()
    assert [[each.number for each in one.open] for one in asked] == [[0], [0], [0]]
    assert trials.passed == 3
