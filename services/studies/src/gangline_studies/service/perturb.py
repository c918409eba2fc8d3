"""Changes the parameters of a population's member a little, for the one that replaces another."""

from __future__ import annotations

import math
import random

from gangline_schemas.study_space import (
    ChoiceParameter,
    FloatParameter,
    IntParameter,
    Parameters,
    Space,
    Value,
    in_order,
)

FACTORS = (0.8, 1.25)
"""Numbers are multiplied by one of these, as in Jaderberg et al., 2017."""
NEW_CHOICE = 0.25
"""How likely a choice is made again."""


def perturbed(space: Space, parameters: Parameters, seed: int) -> Parameters:
    """Parameters near the given ones, the same for the same seed."""
    source = random.Random(seed)  # noqa: S311 - no secret
    found: Parameters = {}
    for name in in_order(space) or ():
        parameter = space[name]
        if not parameter.applies(found):
            continue
        old = parameters.get(name)
        found[name] = (
            _changed(parameter, old, source) if name in parameters else _any(parameter, source)
        )
    return found


def _any(
    parameter: FloatParameter | IntParameter | ChoiceParameter, source: random.Random
) -> Value:
    if isinstance(parameter, ChoiceParameter):
        return source.choice(parameter.values)
    if isinstance(parameter, IntParameter):
        return parameter.low + source.randrange(int(parameter.points)) * (parameter.step or 1)
    return _fitted(parameter, source.uniform(parameter.low, parameter.high))


def _changed(
    parameter: FloatParameter | IntParameter | ChoiceParameter,
    old: Value,
    source: random.Random,
) -> Value:
    if isinstance(parameter, ChoiceParameter):
        return _any(parameter, source) if source.random() < NEW_CHOICE else old
    if isinstance(old, bool) or not isinstance(old, int | float):
        return _any(parameter, source)
    if parameter.low <= 0:  # a factor would never leave 0
        moved = old + source.choice((-0.1, 0.1)) * (parameter.high - parameter.low)
    else:
        moved = old * source.choice(FACTORS)
    if isinstance(parameter, FloatParameter):
        return _fitted(parameter, moved)
    step = parameter.step or 1
    places = round((moved - parameter.low) / step)
    if parameter.low + places * step == old:
        places += 1 if moved > old else -1
    return parameter.low + min(max(places, 0), int(parameter.points) - 1) * step


def _fitted(parameter: FloatParameter, value: float) -> float:
    value = min(max(value, parameter.low), parameter.high)
    if parameter.step is None:
        return value
    places = min(round((value - parameter.low) / parameter.step), math.floor(parameter.points) - 1)
    return parameter.at(places)
