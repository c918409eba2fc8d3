"""Views of a study's trials: curves, axes, importance, the best so far, Pareto. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count, takewhile

from gangline_gateway.parallel import Column, Value, on_axes
from gangline_gateway.studies_state import HOUR_S, objectives, trial, value_of
from gangline_schemas.api.runs import Parallel
from gangline_schemas.api.studies import (
    BestPoint,
    BestSoFar,
    ParameterImportance,
    ParetoFront,
    StudyCurves,
    StudyImportance,
    TrialCurve,
)
from gangline_schemas.placeholders import as_text
from gangline_schemas.study_file import Asha, Hyperband, Objective
from gangline_schemas.study_space import ChoiceParameter
from gangline_studies.core.importance import importances
from gangline_studies.core.policy.rungs import rung_step
from gangline_studies.core.state import Phase, Study, Trial, job_id
from gangline_studies.core.values import is_feasible, oriented

_EVER = datetime.max.replace(tzinfo=UTC)


def curve(found: Trial) -> TrialCurve:
    """The first objective of a trial, as its service remembers it."""
    return TrialCurve(
        number=found.number,
        state=found.phase.value,
        steps=[step for step, _ in found.curve],
        values=[value for _, value in found.curve],
    )


def curves(study: Study, trials: Sequence[Trial], most: int) -> StudyCurves:
    """At most so many curves: of live trials first, then of the best, then of the newest."""
    objective = study.spec.objective[0]
    with_points = [each for each in trials if each.curve]
    chosen = sorted(with_points, key=lambda each: _rank(study, each))[:most]
    longest = max((each.step for each in with_points), default=0)
    return StudyCurves(
        metric=objective.metric,
        direction=objective.direction,
        rungs=_rungs(study, longest),
        curves=[curve(each) for each in sorted(chosen, key=lambda each: each.number)],
        left_out=len(with_points) - len(chosen),
    )


def _rank(study: Study, found: Trial) -> tuple[bool, bool, float, int]:
    value = value_of(study, found)
    sign = oriented(study.spec.objective[0], value) if value is not None else 0.0
    return found.phase.terminal, value is None, sign, -found.number


def _rungs(study: Study, longest: int) -> list[int]:
    """The steps of the rungs, up to the longest trial's."""
    stopping = study.spec.stopping
    if not isinstance(stopping, Asha | Hyperband):
        return []
    most = min(stopping.max_steps or longest + 1, longest + 1)
    steps = (rung_step(stopping, 0, rung) for rung in count())
    return list(takewhile(lambda step: step < most, steps))


def parallel(study_id: str, study: Study, trials: Sequence[Trial]) -> Parallel:
    """Trials on parallel axes: the parameters of the space, GPU-hours, the objectives."""
    space = study.spec.space
    columns: list[Column] = []
    for name, parameter in space.items():
        texts = isinstance(parameter, ChoiceParameter)
        columns.append(("param", name, [_placed(each, name, texts=texts) for each in trials]))
    hours: list[Value] = [each.gpu_seconds / HOUR_S for each in trials]
    columns.append(("attribute", "gpu_hours", hours))
    columns += [
        ("metric", objective.metric, [_last(each, objective) for each in trials])
        for objective in study.spec.objective
    ]
    return on_axes(
        columns,
        [
            (
                job_id(study_id, each.number, max(1, each.part)),
                f"trial {each.number}",
                each.phase.value,
            )
            for each in trials
        ],
    )


def _placed(found: Trial, name: str, *, texts: bool) -> Value:
    if name not in found.parameters:
        return None
    value = found.parameters[name]
    if texts or not isinstance(value, int | float):
        return as_text(value)
    return float(value)


def _last(found: Trial, objective: Objective) -> float | None:
    return found.values.get(objective.metric)


def importance(study: Study, trials: Sequence[Trial], objective: Objective) -> StudyImportance:
    """By parameter, the most important first. Cost: trials times parameters."""
    scored = [
        (each.parameters, oriented(objective, value))
        for each in trials
        if each.phase is Phase.COMPLETED
        if (value := each.values.get(objective.metric)) is not None
    ]
    found = importances(study.spec.space, scored)
    return StudyImportance(
        metric=objective.metric,
        trials=len(scored),
        parameters=[
            ParameterImportance(name=name, importance=value) for name, value in found.items()
        ],
    )


def best_so_far(study: Study, trials: Sequence[Trial], spent_gpu_hours: float) -> BestSoFar:
    """Each trial that was better than all that had ended before. `spent_gpu_hours`: until now."""
    objective = study.spec.objective[0]
    spent_s, best = 0.0, None
    points: list[BestPoint] = []
    ended = [each for each in trials if each.ended_at is not None]
    for each in sorted(ended, key=lambda each: (each.ended_at or _EVER, each.number)):
        spent_s += each.gpu_seconds
        value = value_of(study, each)
        if each.phase is not Phase.COMPLETED or value is None or each.ended_at is None:
            continue
        rank = oriented(objective, value)
        if is_feasible(study.spec, each.values) and (best is None or rank < best):
            best = rank
            hours = spent_s / HOUR_S
            points.append(
                BestPoint(gpu_hours=hours, at=each.ended_at, number=each.number, value=value)
            )
    return BestSoFar(
        metric=objective.metric,
        direction=objective.direction,
        points=points,
        gpu_hours=spent_gpu_hours,
    )


def pareto(study_id: str, study: Study, trials: Sequence[Trial], now: datetime) -> ParetoFront:
    """The feasible completed trials that no other beats in all objectives, by number.

    Cost: O(n log n) with two objectives. With more, trials times the front's size at most; a trial
    that beat others is compared first.
    """
    scored: list[tuple[tuple[float, ...], Trial]] = []
    for each in trials:
        values = [each.values.get(objective.metric) for objective in study.spec.objective]
        fits = each.phase is Phase.COMPLETED and is_feasible(study.spec, each.values)
        if fits and None not in values:
            pairs = zip(study.spec.objective, values, strict=True)
            ranked = tuple(oriented(one, value) for one, value in pairs if value is not None)
            scored.append((ranked, each))
    front: list[tuple[tuple[float, ...], Trial]] = []
    for ranked, each in sorted(scored, key=lambda item: (item[0], item[1].number)):
        held = front[-1:] if len(ranked) == 2 else front  # the last one has the best second value
        beaten_by = next((at for at, one in enumerate(held) if _beats(one[0], ranked)), None)
        if beaten_by is None:
            front.append((ranked, each))
        elif len(ranked) > 2:
            front.insert(0, front.pop(beaten_by))
    found = sorted((each for _, each in front), key=lambda each: each.number)
    return ParetoFront(
        objectives=objectives(study),
        trials=[trial(study_id, study, each, now) for each in found],
    )


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))
