"""CMA-ES over folded results: a question gives the optimizer the completed trials that are new.

Each generation is the next `population_size` completed trials in the order of their ends. Choices
and conditional parameters are sampled at random beside it. The optimizer is seeded again for each
question, so one that is new and has all results gives the same suggestion.
"""

from __future__ import annotations

import math

import numpy as np
from cmaes import CMA
from optuna.samplers import RandomSampler

from gangline_schemas.study_file import StudySpec
from gangline_schemas.study_space import FloatParameter, IntParameter, Parameters, Value
from gangline_studies.core.state import Phase, Trial
from gangline_studies.core.suggesting import Ask
from gangline_studies.core.values import is_feasible, oriented
from gangline_studies.service.optuna_fold import Folded

SIGMA = 1 / 6
"""The first spread, of the range of each parameter."""
_BROKEN = math.inf
"""Worse than each value that breaks no constraint."""
Number = FloatParameter | IntParameter
LEAST_NUMBERS = 2
"""CMA-ES does not search fewer."""


class Generations:
    """The optimizer of one study, and how many ended trials it was given."""

    def __init__(self, spec: StudySpec) -> None:
        self._names = [
            name
            for name, parameter in spec.space.items()
            if isinstance(parameter, Number) and not parameter.when and parameter.points > 1
        ]
        size = len(self._names)
        self._optimizer = (
            CMA(mean=np.full(size, 0.5), sigma=SIGMA, bounds=np.array([[0.0, 1.0]] * size), seed=0)
            if size >= LEAST_NUMBERS
            else None
        )
        self._read = 0
        self._next: list[tuple[np.ndarray, float]] = []

    def suggest(self, folded: Folded, ask: Ask, seed: int) -> Parameters | None:
        """Parameters for the question's trial; None if fewer than two numbers are searched.

        `ask` continues the questions before it. Cost: the trials that ended since the last one.
        """
        optimizer = self._optimizer
        if optimizer is None:
            return None
        for trial in ask.over[self._read :]:
            if trial.phase is Phase.COMPLETED:
                self._next.append((_point(ask, self._names, trial), _value(ask, trial)))
            if len(self._next) == optimizer.population_size:
                optimizer.tell(self._next)
                self._next = []
        self._read = len(ask.over)
        optimizer.reseed_rng(seed)
        fixed: Parameters = {}
        for name, place in zip(self._names, optimizer.ask(), strict=True):
            parameter = ask.spec.space[name]
            if isinstance(parameter, Number):
                fixed[name] = _at(parameter, float(place))
        study = folded.study(ask)
        return folded.sample(study, RandomSampler(seed=seed), ask.number, fixed)


def _value(ask: Ask, trial: Trial) -> float:
    objective = ask.spec.objective[0]
    value = trial.values[objective.metric]
    if value is None or not is_feasible(ask.spec, trial.values):
        return _BROKEN
    return oriented(objective, value)


def _point(ask: Ask, names: list[str], trial: Trial) -> np.ndarray:
    return np.array([_place(ask.spec.space[name], trial.parameters[name]) for name in names])


def _place(parameter: object, value: Value) -> float:
    """Where a value lies in its range, 0 to 1."""
    if not isinstance(parameter, Number) or isinstance(value, bool | str) or value is None:
        raise TypeError("not a number")
    low, high = parameter.low, parameter.high
    if parameter.log:
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (value - low) / (high - low)


def _at(parameter: Number, place: float) -> Value:
    """The value at a place of the range, on its step."""
    place = min(max(place, 0.0), 1.0)
    low, high = parameter.low, parameter.high
    if parameter.log:  # high / low may be beyond every float
        value = math.exp(math.log(low) + place * (math.log(high) - math.log(low)))
    else:
        value = low + place * (high - low)
    if isinstance(parameter, FloatParameter) and parameter.step is None:
        return min(max(value, low), high)
    step = parameter.step or 1
    return parameter.at(min(round((value - low) / step), int(parameter.points) - 1))
