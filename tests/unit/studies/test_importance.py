"""The importance of parameters equals Optuna's."""

from __future__ import annotations

import random
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial
from pydantic import TypeAdapter

from gangline_schemas.study_space import Parameter
from gangline_studies.core.importance import importances

SPACE: dict[str, Any] = TypeAdapter(dict[str, Parameter]).validate_python(
    {
        "lr": {"type": "float", "low": 1e-5, "high": 1e-1, "log": True},
        "momentum": {"type": "float", "low": 0.0, "high": 1.0},
        "drop": {"type": "float", "low": 0.0, "high": 0.5, "step": 0.1},
        "layers": {"type": "int", "low": 1, "high": 12},
        "width": {"type": "int", "low": 8, "high": 1024, "log": True},
        "batch": {"type": "int", "low": 16, "high": 512, "step": 16},
        "optimizer": {"type": "choice", "values": ["sgd", "adam", True, 1]},
        "beta": {"type": "float", "low": 0.8, "high": 1, "when": {"optimizer": ["adam"]}},
    }
)
DISTRIBUTIONS = {
    "lr": FloatDistribution(1e-5, 1e-1, log=True),
    "momentum": FloatDistribution(0.0, 1.0),
    "drop": FloatDistribution(0.0, 0.5, step=0.1),
    "layers": IntDistribution(1, 12),
    "width": IntDistribution(8, 1024, log=True),
    "batch": IntDistribution(16, 512, step=16),
    "optimizer": CategoricalDistribution(["sgd", "adam", "true", "1"]),
    "beta": FloatDistribution(0.8, 1.0),
}


def drawn(chance: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {
        "lr": 10 ** chance.uniform(-5, -1),
        "momentum": chance.random(),
        "drop": chance.randrange(6) * 0.1,
        "layers": chance.randint(1, 12),
        "width": chance.randint(8, 1024),
        "batch": 16 * chance.randint(1, 32),
        "optimizer": SPACE["optimizer"].values[chance.randrange(4)],
    }
    if found["optimizer"] == "adam":
        found["beta"] = chance.uniform(0.8, 1)
    return found


@pytest.mark.parametrize("count", [2, 5, 30, 400])
def test_it_is_that_of_optuna(count: int) -> None:
    chance = random.Random(count)
    trials = [drawn(chance) for _ in range(count)]
    scored = [(each, each["lr"] * each["layers"] + 0.1 * each["momentum"]) for each in trials]
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    for each, value in scored:
        kind = each["optimizer"]
        text = "true" if kind is True else str(kind)
        params = each | {"optimizer": text}
        study.add_trial(
            create_trial(
                params=params,
                distributions={name: DISTRIBUTIONS[name] for name in params},
                value=value,
            )
        )
    evaluator = PedAnovaImportanceEvaluator()
    expected = get_param_importances(study, evaluator=evaluator, normalize=False)
    total = sum(expected.values())
    found = importances(SPACE, scored)
    assert sum(found.values()) == pytest.approx(1.0)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value / total, rel=1e-6, abs=1e-9), name


def test_nothing_is_said_of_one_trial() -> None:
    assert set(importances(SPACE, [(drawn(random.Random(1)), 1.0)]).values()) == {0.0}


def test_the_most_important_comes_first() -> None:
    chance = random.Random(3)
    trials = [drawn(chance) for _ in range(300)]
    found = importances(SPACE, [(each, abs(each["momentum"] - 0.3)) for each in trials])
    assert next(iter(found)) == "momentum"


@pytest.mark.parametrize(
    "x",
    [
        {"type": "int", "low": 10**15 - 1, "high": 10**15, "log": True},
        {"type": "float", "low": 1e14, "high": 1e14 + 0.015625, "log": True},
    ],
)
def test_a_range_whose_ends_have_one_logarithm_says_nothing_wrong(x: dict[str, Any]) -> None:
    space = TypeAdapter(dict[str, Parameter]).validate_python({"x": x})
    trials = [({"x": x["low"]}, 1.0), ({"x": x["high"]}, 2.0)] * 5
    assert [*importances(space, trials)] == ["x"]
