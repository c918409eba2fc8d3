"""The meaning of values: which of two is better, and whether a constraint is broken."""

from __future__ import annotations

from collections.abc import Mapping

from gangline_schemas.study_file import Objective, StudySpec


def oriented(objective: Objective, value: float) -> float:
    """The value so that lower is better."""
    return value if objective.direction == "minimize" else -value


def violations(spec: StudySpec, values: Mapping[str, float | None]) -> list[float]:
    """By constraint, how far its metric is on the wrong side; above 0: broken.

    A metric that was not reported, or is not finite, breaks its constraint by 1.
    """
    found = []
    for constraint in spec.constraints:
        value = values.get(constraint.metric)
        found.append(1.0 if value is None else constraint.violation(value))
    return found


def is_feasible(spec: StudySpec, values: Mapping[str, float | None]) -> bool:
    """Whether no constraint is broken."""
    return all(each <= 0 for each in violations(spec, values))


def are_finite(spec: StudySpec, values: Mapping[str, float | None]) -> bool:
    """Whether each objective that was reported is a finite number."""
    return all(values.get(each.metric, 0.0) is not None for each in spec.objective)
