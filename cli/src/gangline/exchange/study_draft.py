"""The parts of a study that is being translated; pieces that all translations use. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_NOT_NAME = re.compile(r"[^a-z0-9-]+")
_SAMPLERS = {
    "random": "random", "grid": "grid", "tpe": "tpe", "bayesianoptimization": "tpe",
    "multivariate-tpe": "tpe", "cmaes": "cmaes", "hyperband": "random", "pbt": "random",
}  # fmt: skip


class ForeignError(Exception):
    """A part that a study needs is missing, or has no counterpart here."""


@dataclass
class Draft:
    """The name and the other fields of a study file, and notes on what was left out."""

    name: str
    fields: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    def left_out(self, place: str, content: Mapping[str, Any], known: Container[str]) -> None:
        """Note the fields that no translation reads."""
        names = [f"{place}{name}" for name in content if name not in known]
        if names:
            self.notes.append(f"left out: {', '.join(names)}")

    def sampler(self, name: str) -> None:
        """The sampler of this name, or auto."""
        self.fields["sampler"] = _SAMPLERS.get(name, "auto")
        if name not in _SAMPLERS:
            self.notes.append(f"algorithm {name} is not here: the sampler is auto")


def name_of(text: object) -> str:
    """A name as ours have it: a-z, 0-9 and '-'."""
    return _NOT_NAME.sub("-", str(text).lower()).strip("-")[:40].strip("-") or "study"


def choice(values: Sequence[Any]) -> dict[str, Any]:
    """A parameter with one of these values."""
    return {"type": "choice", "values": list(values)}


def number_range(
    *, whole: bool, low: float, high: float, step: float | None = None, log: bool = False
) -> dict[str, Any]:
    """A parameter in a range; of a single number it is a choice."""
    kind = int if whole else float
    if low == high:
        return choice([kind(low)])
    found: dict[str, Any] = {"type": kind.__name__, "low": kind(low), "high": kind(high)}
    if log:
        found["log"] = True
    elif step is not None:
        found["step"] = kind(step)
    return found


def first_rung(last: float, factor: int, rungs: int) -> float:
    """The steps of the first rung, if the last one lies so many rungs above it."""
    first = float(last)
    if factor < 2:  # no tool means that
        return first
    for _ in range(rungs):
        if first < 1:
            return first
        first /= factor
    return first


def asha(first: float, last: float | None, factor: int) -> dict[str, Any] | None:
    """The rule with its first rung at these steps; None if there is room for none."""
    least = max(1, int(first))
    if last is not None and int(last) <= least:
        return None
    found = {"kind": "asha", "min_steps": least, "factor": factor}
    return found if last is None else {**found, "max_steps": int(last)}


def given(**fields: Any) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in fields.items() if value is not None}
