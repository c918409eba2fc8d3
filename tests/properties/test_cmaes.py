"""CMA-ES over folded results: values are those of the space, generations follow the results.

A question gives the optimizer the results that are new; a new process gives it all of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

import pytest
from cmaes import CMA

from gangline_schemas.study_file import StudySpec
from gangline_schemas.study_space import Parameters
from gangline_studies.core.state import Phase, Trial
from gangline_studies.core.suggesting import Ask, Suggestion
from gangline_studies.service.sampler import Sampler

AT = datetime(2026, 1, 1, tzinfo=UTC)
SPACE: dict[str, Any] = {
    "lr": {"type": "float", "low": 1e-5, "high": 0.1, "log": True},
    "drop": {"type": "float", "low": 0.05, "high": 0.5, "step": 0.1},
    "layers": {"type": "int", "low": 2, "high": 13, "step": 3},
    "width": {"type": "int", "low": 8, "high": 4096, "log": True},
    "opt": {"type": "choice", "values": ["adamw", "sgd", True, 1]},
    "momentum": {"type": "float", "low": 0.0, "high": 1.0, "when": {"opt": ["sgd"]}},
    "fixed": {"type": "int", "low": 1, "high": 2, "step": 2},
}
POPULATION = 4 + int(3 * math.log(4))
"""Of the four numbers that are searched, as Hansen (2016) says."""
SEARCHED = ("lr", "drop", "layers", "width")


def spec(**more: Any) -> StudySpec:
    return StudySpec.model_validate({
        "name": "s", "team": "nlp", "objective": {"metric": "loss"}, "space": SPACE,
        "job": {"run": "x", "resources": {"gpus": 1}}, "sampler": "cmaes",
        "limits": {"trials": 10_000}, **more,
    })  # fmt: skip


def loss(found: Parameters) -> float:
    """Best at the middle of lr's range and at the high end of the others."""
    lr, width = float(found["lr"] or 1), float(found["width"] or 1)
    far = abs(math.log10(lr) + 3) + (0.45 - float(found["drop"] or 0)) * 4
    return far + (11 - int(found["layers"] or 0)) / 4 + math.log2(4096 / width) / 3


def ask(held: StudySpec, over: list[Trial], number: int | None = None) -> Ask:
    at = len(over) if number is None else number
    return Ask("s", held, 7, at, len(over), tuple(over), (), 0)


def suggested(sampler: Sampler, question: Ask) -> Parameters:
    found = sampler("", question)
    assert isinstance(found, Suggestion), found
    assert found.by == "cmaes"
    return found.parameters


def ended(number: int, found: Parameters, phase: Phase = Phase.COMPLETED) -> Trial:
    value = loss(found)
    curve = ((1, value),)
    values: dict[str, float | None] = {"loss": value}
    return Trial(number, found, "cmaes", 0, AT, phase=phase, values=values, curve=curve)


def searched(trials: int, new: Callable[[int], bool] = lambda _: False) -> list[Trial]:
    """A study of so many trials, one after the other; `new`: the process is new at this trial."""
    held, sampler, over = spec(), Sampler(), list[Trial]()
    for number in range(trials):
        if new(number):
            sampler = Sampler()
        over.append(ended(number, suggested(sampler, ask(held, over))))
    return over


def test_values_are_those_of_the_space_in_all_generations() -> None:
    held = spec()
    trials = searched(12 * POPULATION)
    drops = {held.space["drop"].at(place) for place in range(5)}
    for trial in trials:
        own = trial.parameters
        assert ("momentum" in own) == (own["opt"] == "sgd")
        assert all(held.space[name].holds(value) for name, value in own.items()), own
        assert own["drop"] in drops
        assert own["fixed"] == 1
        assert {type(own[name]) for name in ("lr", "drop")} == {float}
        assert {type(own[name]) for name in ("layers", "width")} == {int}
    assert len({trial.parameters["layers"] for trial in trials}) > 2
    assert len({str(trial.parameters["opt"]) for trial in trials}) == 4


def test_generations_lead_to_better_values() -> None:
    trials = searched(12 * POPULATION)
    first, last = trials[:POPULATION], trials[-POPULATION:]
    mean = [fmean(trial.values["loss"] or 0.0 for trial in part) for part in (first, last)]
    assert mean[1] < mean[0] / 2


def test_new_processes_give_the_same_suggestions() -> None:
    source = random.Random(5)
    assert searched(4 * POPULATION, lambda _: source.random() < 0.3) == searched(4 * POPULATION)


def test_the_seed_and_the_number_of_the_trial_decide_and_nothing_else() -> None:
    question = ask(spec(), searched(POPULATION))
    found = suggested(Sampler(), question)
    assert suggested(Sampler(), question) == found
    others = (replace(question, number=question.number + 1), replace(question, seed=8))
    assert all(suggested(Sampler(), other)["lr"] != found["lr"] for other in others)


def test_a_generation_counts_once_it_is_whole_and_pruned_trials_are_not_of_it() -> None:
    trials = searched(2 * POPULATION)
    held, number = spec(), 10 * POPULATION

    def numbers(over: list[Trial]) -> list[Any]:
        found = suggested(Sampler(), ask(held, over, number))
        return [found[name] for name in SEARCHED]

    none, one = numbers([]), numbers(trials[:POPULATION])
    assert numbers(trials[: POPULATION - 1]) == none
    assert one != none
    assert numbers(trials[: 2 * POPULATION - 1]) == one
    assert numbers(trials) != one
    pruned = [ended(number + at, trial.parameters, Phase.PRUNED) for at, trial in enumerate(trials)]
    assert numbers([*trials[:POPULATION], *pruned]) == one


def test_a_broken_constraint_is_worse_than_each_value() -> None:
    """CMA-ES sees the order of values alone, so their size changes nothing."""
    held = spec(constraints=[{"metric": "memory", "max": 1.0}])

    def suggestion(size: float) -> Parameters:
        over = [
            trial._replace(values={
                "loss": (trial.values["loss"] or 0.0) * size, "memory": 2.0 * (trial.number % 2)
            })
            for trial in searched(4 * POPULATION)
        ]  # fmt: skip
        return suggested(Sampler(), ask(held, over))

    assert suggestion(1e200) == suggestion(1.0)


def test_with_one_number_it_suggests_at_random() -> None:
    held = spec(space={"lr": SPACE["lr"], "opt": SPACE["opt"]})
    found = Sampler()("", ask(held, []))
    assert isinstance(found, Suggestion)
    assert found.by == "random"
    assert held.space["lr"].holds(found.parameters["lr"])


def test_a_question_gives_the_optimizer_only_results_that_are_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = []
    tell = CMA.tell

    def counted(self: CMA, solutions: list[Any]) -> None:
        told.append(len(solutions))
        tell(self, solutions)

    trials = searched(9 * POPULATION)
    held, sampler = spec(), Sampler()
    monkeypatch.setattr(CMA, "tell", counted)
    suggested(sampler, ask(held, trials[: 8 * POPULATION]))
    assert len(told) == 8
    for more in range(1, POPULATION + 1):
        suggested(sampler, ask(held, trials[: 8 * POPULATION + more]))
    assert len(told) == 9
