"""A suggestion of the service is the one that a live Optuna study gives at that point."""

from __future__ import annotations

import os
import random
import warnings
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import optuna
import pytest
from optuna.samplers import TPESampler
from optuna.storages import InMemoryStorage
from optuna.trial import TrialState

from gangline_schemas.events.studies import TrialFailure
from gangline_schemas.study_file import StudySpec
from gangline_schemas.study_space import ChoiceParameter, IntParameter, Parameters
from gangline_studies.core.state import Phase, Trial
from gangline_studies.core.suggesting import Ask
from gangline_studies.service.optuna_fold import STARTUP, Folded, inner, outer
from gangline_studies.service.sampler import grid_point, seed_of

AT = datetime(2026, 1, 1, tzinfo=UTC)
PREFIXES = int(os.environ.get("GANGLINE_ASK_PREFIXES", "30"))
"""By each case; `make soak` compares 1,000 in all."""
FLAT = {
    "lr": {"type": "float", "low": 1e-5, "high": 0.1, "log": True},
    "layers": {"type": "int", "low": 2, "high": 12, "step": 2},
    "drop": {"type": "float", "low": 0.0, "high": 0.5, "step": 0.1},
    "opt": {"type": "choice", "values": ["adamw", "sgd", True, 1, None]},
}
NESTED = {
    **FLAT,
    "momentum": {"type": "float", "low": 0.0, "high": 1.0, "when": {"opt": ["sgd", True]}},
    "warmup": {"type": "int", "low": 1, "high": 100, "log": True, "when": {"layers": [2, 4, 6]}},
}
ONE = {"metric": "loss"}
TWO = [{"metric": "loss"}, {"metric": "size", "direction": "maximize"}]


def spec(space: dict[str, Any], objective: Any, **more: Any) -> StudySpec:
    return StudySpec.model_validate({
        "name": "s", "team": "nlp", "objective": objective, "space": space,
        "job": {"run": "x", "resources": {"gpus": 1}}, "sampler": "tpe", **more,
    })  # fmt: skip


class Plain(InMemoryStorage):
    """Without TPE's note of the values that a conditional parameter would have had.

    Of a trial that runs, Optuna counts them as if it had them; a fold knows the trial's own alone.
    """

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        if not key.startswith("tpe:relative_params"):
            super().set_trial_system_attr(trial_id, key, value)


def live_sampler(held: StudySpec, seed: int) -> TPESampler:
    conditional = any(each.when for each in held.space.values())
    return TPESampler(
        n_startup_trials=STARTUP,
        multivariate=len(held.objective) == 1 or conditional,
        group=conditional,
        constant_liar=True,
        seed=seed,
    )


def suggested(held: StudySpec, folded: Folded, trial: optuna.Trial) -> Parameters:
    """As a user's program would ask."""
    found: Parameters = {}
    for name in folded.order:
        parameter = held.space[name]
        if not parameter.applies(found):
            continue
        if isinstance(parameter, ChoiceParameter):
            choices = range(len(parameter.values))
            found[name] = outer(parameter, trial.suggest_categorical(name, choices))
        elif isinstance(parameter, IntParameter):
            found[name] = trial.suggest_int(
                name, parameter.low, parameter.high, step=parameter.step or 1, log=parameter.log
            )
        else:
            found[name] = trial.suggest_float(
                name, parameter.low, parameter.high, step=parameter.step, log=parameter.log
            )
    return found


@pytest.mark.parametrize(
    ("space", "objective", "more"),
    [
        (FLAT, ONE, {}),
        (NESTED, ONE, {"constraints": [{"metric": "memory", "max": 1.0}]}),
        (FLAT, TWO, {}),
    ],
)
def test_fold_and_ask_is_the_live_ask(
    space: dict[str, Any], objective: Any, more: dict[str, Any]
) -> None:
    held = spec(space, objective, **more)
    directions = [each.direction for each in held.objective]
    live = optuna.create_study(storage=Plain(), directions=directions)
    folded = Folded(held)
    source = random.Random(3)
    over: list[Trial] = []
    running: dict[int, tuple[optuna.Trial, Trial]] = {}
    for number in range(PREFIXES + STARTUP):
        seed = seed_of(11, number)
        ask = Ask("s", held, 11, number, 0, tuple(over), tuple(t for _, t in running.values()), 0)
        if number % 7 == 0:
            folded = Folded(held)  # a new process
        mine, by = folded.suggest(ask, "tpe", seed)
        finished = [trial for trial in over if trial.why is not TrialFailure.FAILED]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            live.sampler = live_sampler(held, seed)
            theirs_trial = live.ask()
            theirs = suggested(held, folded, theirs_trial)
        assert mine == theirs, number
        assert by == ("tpe" if len(finished) >= STARTUP else "random")
        running[number] = (theirs_trial, Trial(number, mine, by, 0, AT, phase=Phase.RUNNING))
        while len(running) > 4:
            _end(held, live, source, running, over)


def _end(
    held: StudySpec,
    live: optuna.Study,
    source: random.Random,
    running: dict[int, tuple[optuna.Trial, Trial]],
    over: list[Trial],
) -> None:
    theirs, mine = running.pop(source.choice([*running]))
    values = {name: source.gauss(0, 1) for name in held.metrics}
    step, value = source.randrange(1, 20), values["loss"]
    kind = source.choice(("completed", "completed", "pruned", "memory", "failed"))
    for constraint in held.constraints if kind in {"completed", "pruned"} else ():
        broken = constraint.violation(values[constraint.metric])
        theirs.set_constraint(constraint.metric, broken)
    curve = ((step, value),)
    if kind == "completed":
        live.tell(theirs, [values[each.metric] for each in held.objective])
        ended = mine._replace(phase=Phase.COMPLETED, values=values, curve=curve)
    elif kind == "pruned":
        if len(held.objective) == 1:
            theirs.report(value, step)
        live.tell(theirs, state=TrialState.PRUNED)
        ended = mine._replace(phase=Phase.PRUNED, values=values, curve=curve)
    elif kind == "memory":
        theirs.set_constraint("memory", 1.0)
        live.tell(theirs, state=TrialState.PRUNED)
        ended = mine._replace(phase=Phase.FAILED, why=TrialFailure.OUT_OF_MEMORY)
    else:
        live.tell(theirs, state=TrialState.FAIL)
        ended = mine._replace(phase=Phase.FAILED, why=TrialFailure.FAILED)
    over.append(ended)


def test_a_start_point_is_taken_and_the_rest_is_sampled() -> None:
    held = spec(NESTED, ONE)
    ask = Ask("s", held, 1, 0, 0, (), (), 0, start={"lr": 0.01, "opt": "adamw"})
    found, by = Folded(held).suggest(ask, "tpe", 5)
    assert by == "start"
    assert (found["lr"], found["opt"]) == (0.01, "adamw")
    assert "momentum" not in found
    assert held.space["layers"].holds(found["layers"])


def test_the_same_question_has_the_same_answer() -> None:
    held = spec(FLAT, ONE)
    ask = Ask("s", held, 1, 4, 0, (), (), 0)
    assert Folded(held).suggest(ask, "random", 5) == Folded(held).suggest(ask, "random", 5)
    other = replace(ask, number=5)
    assert Folded(held).suggest(ask, "tpe", 5) != Folded(held).suggest(other, "tpe", 6)


def test_a_point_of_a_grid_costs_no_list_of_its_points() -> None:
    whole = {"type": "int", "low": -(10**15), "high": 10**15}
    real = {"type": "float", "low": 0.0, "high": 1.0, "step": 1e-12}
    found = grid_point(spec({"n": whole, "x": real}, {"metric": "loss"}, sampler="grid"), 7)
    assert found == {"n": -(10**15), "x": 7e-12}


def test_true_is_another_choice_than_1() -> None:
    parameter = spec(FLAT, ONE).space["opt"]
    assert [inner(parameter, each) for each in (True, 1, None)] == [2, 3, 4]
    assert outer(parameter, 2) is True
