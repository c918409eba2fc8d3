"""The search space of a study: parameters, their ranges, and when they apply."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    StringConstraints,
    model_validator,
)

from gangline_schemas.base import Model
from gangline_schemas.limits import INT53_MAX, METRIC_MAX

MAX_PARAMETERS = 100
MAX_CHOICES = 1000
TEXT_CHARS = 1024
MAX_POINTS = 10**15
"""Steps of a float from `low` to `high`: so many are exact in a float."""
_NAME = re.compile(r"^(?!__)[A-Za-z_][A-Za-z0-9_.-]{0,127}$")
Text = Annotated[StrictStr, StringConstraints(max_length=TEXT_CHARS)]
Whole = Annotated[StrictInt, Field(ge=-INT53_MAX, le=INT53_MAX)]
Real = Annotated[StrictFloat, Field(ge=-METRIC_MAX, le=METRIC_MAX)]
Value = StrictBool | Whole | Real | Text | None
"""Of a parameter: a number, a text, true, false or null."""
ParameterName = Annotated[str, StringConstraints(max_length=128)]
Parameters = Annotated[dict[ParameterName, Value], Field(max_length=MAX_PARAMETERS)]
"""Values by the name of their parameter."""
Bound = Annotated[float, Field(ge=-1e15, le=1e15)]
Conditions = Annotated[
    dict[ParameterName, Annotated[tuple[Value, ...], Field(min_length=1, max_length=MAX_CHOICES)]],
    Field(max_length=8),
]


class _Parameter(Model):
    when: Conditions = Field(
        default_factory=dict,
        description="The parameter applies only if each of these has one of its values.",
    )

    def applies(self, values: Mapping[str, Value]) -> bool:
        """Whether the values of the other parameters ask for this one."""
        return all(
            name in values and (type(values[name]), values[name]) in wanted
            for name, wanted in self._wanted.items()
        )

    @cached_property
    def _wanted(self) -> dict[str, set[tuple[object, Value]]]:
        """With their types: true is not 1."""
        return {name: {(type(one), one) for one in given} for name, given in self.when.items()}


class _Range(_Parameter):
    low: Bound
    high: Bound
    log: bool = Field(default=False, description="Search the logarithm; no step then.")
    step: float | None = None

    @model_validator(mode="after")
    def _range_is_sound(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"high ({self.high:g}) must be above low ({self.low:g})")
        if self.log and self.low <= 0:
            raise ValueError(f"low ({self.low:g}) must be above 0 where log is true")
        if self.log and self.step is not None:
            raise ValueError("give either log or step")
        return self


class FloatParameter(_Range):
    """A number from `low` to `high`, both included."""

    type: Literal["float"]
    step: Annotated[float, Field(gt=0, le=1e15)] | None = None

    @model_validator(mode="after")
    def _steps_can_be_counted(self) -> Self:
        if self.step is not None and (self.high - self.low) / self.step > MAX_POINTS:
            raise ValueError(f"step ({self.step:g}) is too small for a range up to {self.high:g}")
        return self

    @property
    def points(self) -> float:
        """How many values it can have."""
        if self.step is None:
            return math.inf
        return math.floor((self.high - self.low) / self.step + 1e-9) + 1

    def at(self, place: int) -> float:
        """Its value at a place of the grid, from 0; only with a step. Never above `high`."""
        return min(self.low + place * (self.step or 0.0), self.high)

    def holds(self, value: Value) -> bool:
        """Whether the value lies in the range."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high  # type: ignore[operator]

    def probes(self) -> tuple[Value, ...]:
        """Values that stand for all in a check of the job."""
        return (self.low, self.high)


class IntParameter(_Range):
    """A whole number from `low` to `high`, both included."""

    type: Literal["int"]
    low: Annotated[int, Field(ge=-(10**15), le=10**15)]
    high: Annotated[int, Field(ge=-(10**15), le=10**15)]
    step: Annotated[int, Field(ge=1, le=10**15)] | None = None

    @property
    def points(self) -> float:
        """How many values it can have."""
        return (self.high - self.low) // (self.step or 1) + 1

    def at(self, place: int) -> int:
        """Its value at a place of the grid, from 0."""
        return self.low + place * (self.step or 1)

    def holds(self, value: Value) -> bool:
        """Whether the value lies in the range and on a step."""
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return self.low <= value <= self.high and (value - self.low) % (self.step or 1) == 0

    def probes(self) -> tuple[Value, ...]:
        """Values that stand for all in a check of the job."""
        return (self.low, self.low + (self.high - self.low) // (self.step or 1) * (self.step or 1))


class ChoiceParameter(_Parameter):
    """One of some values without an order."""

    type: Literal["choice"]
    values: tuple[Value, ...] = Field(min_length=1, max_length=MAX_CHOICES)

    @model_validator(mode="after")
    def _values_differ(self) -> Self:
        if len({(type(each), each) for each in self.values}) < len(self.values):
            raise ValueError("values: holds a value twice")
        return self

    @property
    def points(self) -> float:
        """How many values it can have."""
        return len(self.values)

    def at(self, place: int) -> Value:
        """Its value at a place of the grid, from 0."""
        return self.values[place]

    @cached_property
    def _places(self) -> dict[tuple[object, Value], int]:
        return {(type(each), each): place for place, each in enumerate(self.values)}

    def holds(self, value: Value) -> bool:
        """Whether it is one of the values."""
        return (type(value), value) in self._places

    def place(self, value: Value) -> int:
        """Where the value is among `values`, from 0. Raises KeyError if it is none of them."""
        return self._places[type(value), value]

    def probes(self) -> tuple[Value, ...]:
        """Values that stand for all in a check of the job."""
        return self.values[:16]


Parameter = Annotated[FloatParameter | IntParameter | ChoiceParameter, Field(discriminator="type")]
Space = Mapping[str, FloatParameter | IntParameter | ChoiceParameter]


def in_order(space: Space) -> list[str] | None:
    """The parameters, each behind those that it depends on; None if they depend in a circle."""
    found: dict[str, None] = {}
    left = list(space)
    while left:
        ready = [name for name in left if all(other in found for other in space[name].when)]
        if not ready:
            return None
        found.update(dict.fromkeys(ready))
        left = [name for name in left if name not in found]
    return list(found)


def space_problem(space: Space) -> str | None:
    """Why a space is not sound, as a sentence that begins with the parameter; None if it is."""
    for name, parameter in space.items():
        if not _NAME.match(name):
            return (
                f"{name[:64]!r}: a name has letters, digits, '_', '.' and '-', begins with a "
                "letter, and has at most 128 characters"
            )
        for other, wanted in parameter.when.items():
            held = space.get(other)
            if held is None:
                return f"{name}.when: '{other[:64]}' is no parameter of the space"
            if isinstance(held, FloatParameter):
                return f"{name}.when: '{other}' is a float; conditions are on int and choice"
            if not all(held.holds(each) for each in wanted):
                return f"{name}.when.{other}: lists a value that '{other}' never has"
    if in_order(space) is None:
        return "the parameters depend on one another in a circle; change their 'when'"
    return None


def grid_points(space: Space) -> float:
    """The points of the whole grid, with conditions left out of account; may be infinite.

    As floats: the product of whole numbers may be beyond every float.
    """
    return math.prod(float(parameter.points) for parameter in space.values())
