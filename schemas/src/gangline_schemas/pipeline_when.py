"""Conditions of steps: `evaluate.accuracy >= 0.8 and params.mode == full`.

Clauses are joined by `and`. The left side is a score of a step, or a parameter of the run. Scores
are compared as numbers, parameters as numbers where both sides are some, else as texts.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gangline_schemas.placeholders import as_text

MAX_WHEN_CHARS = 1024
PARAMS = "params"
_CLAUSE = re.compile(r"^\s*([a-z0-9-]+)\.([a-z0-9_-]+)\s*(==|!=|<=|>=|<|>)\s*(\S(?:.*\S)?)\s*$")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


class WhenError(Exception):
    """A text cannot be read as a condition."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One comparison. `owner`: a step, or `params`."""

    owner: str
    name: str
    sign: str
    right: str

    @property
    def step(self) -> str | None:
        """The step whose score is compared; None for a parameter."""
        return None if self.owner == PARAMS else self.owner

    def holds(self, left: str | float) -> bool:
        """Whether it holds for this value."""
        compare = _OPERATORS[self.sign]
        if isinstance(left, bool):
            return compare(as_text(left), self.right.lower())
        numbers = _number(left), _number(self.right)
        if numbers[0] is not None and numbers[1] is not None:
            return compare(*numbers)
        return compare(str(left), self.right)


def clauses(text: str) -> tuple[Clause, ...]:
    """The clauses of a condition. Raises WhenError."""
    found = []
    for part in text.split(" and "):
        match = _CLAUSE.match(part)
        if match is None:
            raise WhenError(
                "must be comparisons joined by 'and', like: evaluate.accuracy >= 0.8; "
                "the left side is STEP.SCORE or params.NAME"
            )
        clause = Clause(*match.groups())
        if clause.step is not None and _number(clause.right) is None:
            raise WhenError(f"compares the score {clause.owner}.{clause.name} with no number")
        found.append(clause)
    return tuple(found)


def failing(
    text: str,
    params: Mapping[str, str | float],
    scores: Mapping[str, Sequence[float]],
) -> str | None:
    """The first clause that does not hold, with the values; None if all hold.

    `scores`: by `STEP.SCORE`, of each item of a fan-out. A clause holds if it does for each.
    """
    for clause in clauses(text):
        name = f"{clause.owner}.{clause.name}"
        if clause.step is None:
            values: Sequence[str | float] = [params.get(clause.name, "")]
        else:
            values = scores.get(name, ())
        wrong = [value for value in values if not clause.holds(value)]
        if wrong or not values:
            shown = f"it is {as_text(wrong[0])}" if wrong else "it has no value"
            return f"{name} {clause.sign} {clause.right} does not hold: {shown}"
    return None


def _number(value: str | float) -> float | None:
    try:
        found = float(value)
    except ValueError:
        return None
    return found if found == found else None  # noqa: PLR0124 - NaN does not count
