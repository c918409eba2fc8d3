"""Suggestions at the edges of what a study file can say: values stay in the space."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gangline_schemas.study_file import StudySpec
from gangline_studies.core.state import Phase, Trial
from gangline_studies.core.suggesting import Ask, Suggestion
from gangline_studies.service.sampler import Sampler

AT = datetime(2026, 1, 1, tzinfo=UTC)
TENTHS = {"type": "float", "low": 0.0, "high": 0.3, "step": 0.1}
FINE = {"type": "float", "low": 0.0, "high": 1000.0, "step": 1e-6}
LAYERS = {"type": "int", "low": 1, "high": 4}
LEAST = {"type": "float", "low": 5e-324, "high": 1e15, "log": True}


def searched(sampler: str, space: dict[str, Any], trials: int, **more: Any) -> list[Trial]:
    """A study of so many trials, one after the other. The value is that of x."""
    spec = StudySpec.model_validate({
        "name": "s", "team": "nlp", "objective": {"metric": "loss"}, "space": space,
        "job": {"run": "x", "resources": {"gpus": 1}}, "sampler": sampler, **more,
    })  # fmt: skip
    asked, over = Sampler(), list[Trial]()
    for number in range(trials):
        start = spec.start[number] if number < len(spec.start) else None
        question = Ask("s", spec, 7, number, number, tuple(over), (), number, start)
        found = asked("", question)
        assert isinstance(found, Suggestion), found
        outside = {
            name: value
            for name, value in found.parameters.items()
            if not spec.space[name].holds(value)
        }
        assert not outside
        value = float(found.parameters["x"] or 0.0)
        over.append(
            Trial(
                number, found.parameters, found.by, number, AT, phase=Phase.COMPLETED,
                values={"loss": -value}, curve=((1, -value),),
            )
        )  # fmt: skip
    return over


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes"])
def test_the_last_step_is_not_above_the_range(sampler: str) -> None:
    """As floats, three times 0.1 is more than 0.3."""
    found = searched(sampler, {"x": TENTHS, "layers": LAYERS}, 40)
    assert max(float(one.parameters["x"] or 0) for one in found) == 0.3


def test_the_grid_is_not_above_the_range() -> None:
    assert [one.parameters["x"] for one in searched("grid", {"x": TENTHS}, 4)] == [
        0.0, 0.1, 0.2, 0.3,
    ]  # fmt: skip


def test_a_start_point_between_two_steps_keeps_its_value_and_the_search_continues() -> None:
    found = searched("tpe", {"x": TENTHS, "layers": LAYERS}, 15, start=[{"x": 0.25}])
    assert found[0].parameters["x"] == 0.25
    assert found[-1].by == "tpe"


def test_a_range_of_very_many_steps_is_searched() -> None:
    """Optuna refuses values that rounding moves by more than 1e-8 of a step."""
    found = searched("tpe", {"x": FINE, "layers": LAYERS}, 40)
    steps = [float(one.parameters["x"] or 0) * 1e6 for one in found]
    assert all(abs(step - round(step)) < 1e-3 for step in steps)


def test_cmaes_searches_a_range_whose_ends_have_no_quotient() -> None:
    assert len(searched("cmaes", {"x": LEAST, "y": LEAST}, 20)) == 20
