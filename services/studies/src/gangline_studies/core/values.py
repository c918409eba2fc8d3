"""The meaning of values: which of two is better, and whether a constraint is broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gangline_schemas.study_file import Objective, Pbt, StudySpec
from gangline_schemas.study_space import grid_points


def oriented(objective: Objective, value: float) -> float:
    """The value so that lower is better."""
    return value if objective.direction == "minimize" else -value


def violations(spec: StudySpec, values: Mapping[str, float | None]) -> list[float]:
    """By constraint, how far its metric is on the wrong side; above 0: broken."""
    return [each.violation(values.get(each.metric)) for each in spec.constraints]


def is_feasible(spec: StudySpec, values: Mapping[str, float | None]) -> bool:
    """Whether no constraint is broken."""
    return all(each <= 0 for each in violations(spec, values))


def are_finite(spec: StudySpec, values: Mapping[str, float | None]) -> bool:
    """Whether each objective that was reported is a finite number."""
    return all(values.get(each.metric, 0.0) is not None for each in spec.objective)


def result_of(
    spec: StudySpec,
    values: Mapping[str, float | None],
    curve: Sequence[tuple[int, float | None]],
) -> dict[str, float | None] | None:
    """The result of a trial whose program ended well; None if an objective was not reported."""
    found = dict(values)
    if any(found.get(each.metric) is None for each in spec.objective):
        return None
    first = spec.objective[0]
    seen = [value for _, value in curve if value is not None]
    if first.take == "best" and seen:
        found[first.metric] = min(seen, key=lambda value: oriented(first, value))
    return found


def sampler_of(spec: StudySpec) -> str:
    """The sampler of a study: `auto` is the grid if all of it may be tried, else tpe."""
    if isinstance(spec.stopping, Pbt):
        return "random"
    if spec.sampler != "auto":
        return spec.sampler
    conditional = any(parameter.when for parameter in spec.space.values())
    return "grid" if not conditional and grid_points(spec.space) <= spec.limits.trials else "tpe"
