"""Studies and trials as people read them: lines and tables of at most 80 columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime

from gangline import render
from gangline.render import NONE, Column
from gangline_schemas.api.runs import Parallel, ParallelAxis
from gangline_schemas.api.studies import (
    BestSoFar,
    ParameterImportance,
    ParetoFront,
    Study,
    StudyCurves,
    StudyDetail,
    StudyPlan,
    Trial,
    TrialCurve,
)
from gangline_schemas.placeholders import as_text
from gangline_schemas.study_space import Value

_PARAMETERS = 4
_WIDTH = 11
_BAR = 30
_CURVE = 36
_AXIS = 40
_DECADES = 100.0
"""An axis of more than two decades is shown by its logarithm."""


def plan(found: StudyPlan, packed: str) -> str:
    """The trials of a study, its space, and the job of one trial."""
    spec = found.spec
    goals = ", ".join(f"{each.direction} {each.metric}" for each in spec.objective)
    job = found.job
    command = job.run.strip().splitlines()[0] if job.run else " ".join(job.command)
    limits = spec.limits
    most = f", {limits.gpu_hours:g} GPU-hours at most" if limits.gpu_hours else ""
    rows = [
        ("study", f"{spec.name}, team {spec.team}, {goals}"),
        ("search", f"{spec.sampler}, {render.count(len(spec.space), 'parameter')}{_points(found)}"),
        ("stopping", spec.stopping.kind),
        ("trials", f"{found.trials}, {limits.parallel} at a time{most}"),
        ("each runs", render.shorten(render.plain(command), 64)),
        ("each has", render.count(job.resources.gpus, "GPU")),
    ]
    if packed:
        rows.append(("workdir", packed))
    lines = [render.labelled(name, text, _WIDTH) for name, text in rows]
    return "\n".join([*lines, *(render.labelled("note", note, _WIDTH) for note in found.notes)])


def _points(found: StudyPlan) -> str:
    return "" if found.points is None else f", a grid of {found.points:,.0f} points"


def progress(study: Study) -> str:
    """`12 of 40 trials ended, 4 run, best eval_loss 2.31 by trial 7`."""
    counts = study.trials
    text = f"{counts.ended} of {counts.limit} trials ended, {counts.running} run"
    if study.best is not None:
        text += f", best {study.objectives[0].metric} {render.number(study.best.value)}"
        text += f" by trial {study.best.number}"
    return text


def ending(study: Study) -> str:
    """How a study ended."""
    why = study.reason.replace("_", " ")
    lines = [render.wrap(f"{study.study_id} has ended ({why}): {progress(study)}")]
    if study.message:
        lines.append(render.wrap(study.message, "  "))
    return "\n".join(lines)


def studies(now: datetime) -> tuple[Column[Study], ...]:
    """The columns of a list of studies."""
    return (
        Column("STUDY", lambda study: study.study_id, whole=True),
        Column("TEAM", lambda study: study.team, flexible=True),
        Column("STATE", lambda study: study.state),
        Column("TRIALS", lambda study: f"{study.trials.total}/{study.trials.limit}", right=True),
        Column("BEST", _best_value, right=True),
        Column("GPU H", lambda study: render.number(study.gpu_hours), right=True),
        Column("AGE", lambda study: render.short_age(study.created_at, now), right=True),
    )


def _best_value(study: Study) -> str:
    return NONE if study.best is None else render.number(study.best.value)


def description(study: StudyDetail, now: datetime) -> str:
    """A study on several lines."""
    counts = study.trials
    states = ("waiting", "running", "paused", "completed", "pruned", "failed")
    parts = [f"{getattr(counts, name)} {name}" for name in states if getattr(counts, name)]
    why = f" ({study.reason.replace('_', ' ')})" if study.reason else ""
    limit = f" of {study.gpu_hours_limit:g}" if study.gpu_hours_limit else ""
    goals = ", ".join(f"{each.direction} {each.metric}" for each in study.objectives)
    rows = [
        ("state", f"{study.state}{why}"),
        ("team", f"{study.team}, user {study.user}, project {study.project or NONE}"),
        ("objective", goals),
        ("search", f"{study.sampler}, stopping {study.stopping}, seed {study.seed}"),
        ("trials", f"{counts.total} of {counts.limit}: {', '.join(parts) or 'none yet'}"),
        ("GPU-hours", f"{render.number(study.gpu_hours)}{limit}"),
        ("began", f"{render.age(study.created_at, now)} ago"),
        ("ended", f"{render.age(study.ended_at, now)} ago" if study.ended_at else NONE),
        ("MLflow", study.experiment),
    ]
    lines = [study.study_id]
    lines += [render.labelled(f"  {name}", text, 14) for name, text in rows if text != NONE]
    if study.message:
        lines.append(render.wrap(study.message, "  "))
    if study.best is not None:
        best_of = f"trial {study.best.number} ({study.best.job_id})"
        lines.append(f"  best        {render.number(study.best.value)} by {best_of}")
        lines += _parameters(study.best.parameters, "    ")
    return "\n".join(lines)


def _parameters(parameters: Mapping[str, Value], indent: str) -> list[str]:
    width = max((len(name) for name in parameters), default=0)
    return [
        render.wrap(f"{name.ljust(width)}  {value(each)}", indent)
        for name, each in parameters.items()
    ]


def value(found: Value) -> str:
    """A parameter's value: numbers rounded, texts as they are."""
    if isinstance(found, float):
        return render.number(found)
    return as_text(found)


def trials(found: Sequence[Trial]) -> tuple[Column[Trial], ...]:
    """The columns of a table of trials: as many parameters as there is room for."""
    names = list(dict.fromkeys(name for each in found for name in each.parameters))
    return (
        Column("TRIAL", lambda each: str(each.number), right=True),
        Column("STATE", _state),
        Column("STEP", lambda each: str(each.step), right=True),
        Column("VALUE", lambda each: render.number(each.value), right=True),
        Column("GPU H", lambda each: render.number(each.gpu_hours), right=True),
        *(_parameter(name) for name in names[:_PARAMETERS]),
    )


def _parameter(name: str) -> Column[Trial]:
    def cell(found: Trial) -> str:
        return value(found.parameters[name]) if name in found.parameters else NONE

    return Column(name, cell, flexible=True)


def _state(found: Trial) -> str:
    why = found.reason.replace("_", " ")
    return f"{found.state}: {why}" if found.state == "failed" and why else found.state


def front(found: ParetoFront) -> tuple[Column[Trial], ...]:
    """The columns of a Pareto front: all objectives."""
    names = [each.metric for each in found.objectives]
    first = trials(found.trials)
    return (first[0], *(_metric(name) for name in names), first[4], *first[5:])


def _metric(name: str) -> Column[Trial]:
    return Column(name, lambda each: render.number(each.values.get(name)), right=True)


def best(study: StudyDetail, course: BestSoFar) -> str:
    """The best trial, its parameters, and each improvement with the GPU-hours until then."""
    found = study.best
    if found is None:
        return ""
    metric = study.objectives[0].metric
    lines = [f"trial {found.number} ({found.job_id})", f"  {metric}  {render.number(found.value)}"]
    lines += [
        f"  {name}  {render.number(each)}" for name, each in found.values.items() if name != metric
    ]
    lines += ["", "parameters", *_parameters(found.parameters, "  "), "", "best so far"]
    lines += [
        f"  after {render.number(point.gpu_hours)} GPU-hours: {render.number(point.value)} "
        f"by trial {point.number}"
        for point in course.points
    ]
    return "\n".join([*lines, "", f"use it: gangline reproduce {found.job_id}"])


def importances() -> tuple[Column[ParameterImportance], ...]:
    """The columns of a table of importances, with bars."""
    return (
        Column("PARAMETER", lambda each: each.name, flexible=True),
        Column("SHARE", lambda each: render.percent(each.importance), right=True),
        Column("", lambda each: "█" * round(each.importance * _BAR)),
    )


def curves(found: StudyCurves) -> tuple[Column[TrialCurve], ...]:
    """The columns of a table of curves, each on its own scale."""
    pick = min if found.direction == "minimize" else max

    def best_of(curve: TrialCurve) -> str:
        finite = [one for one in curve.values if one is not None]
        return render.number(pick(finite)) if finite else NONE

    return (
        Column("TRIAL", lambda each: str(each.number), right=True),
        Column("STATE", lambda each: str(each.state)),
        Column("STEP", lambda each: str(each.steps[-1]) if each.steps else NONE, right=True),
        Column("BEST", best_of, right=True),
        Column(
            render.shorten(found.metric, _CURVE),
            lambda each: render.sparkline([v for v in each.values if v is not None], _CURVE),
        ),
    )


def parallel(found: Parallel) -> tuple[Column[tuple[int, ParallelAxis]], ...]:
    """The columns of a table of axes, with the places of the runs in their order."""

    def places(row: tuple[int, ParallelAxis]) -> str:
        at, axis = row
        return render.bars([_place(axis, run.values[at]) for run in found.runs[:_AXIS]])

    return (
        Column("AXIS", lambda row: row[1].name, flexible=True),
        Column("LOW", lambda row: _end_of(row[1], 0), right=True),
        Column("HIGH", lambda row: _end_of(row[1], -1), right=True),
        Column("BEST FIRST", places),
    )


def _end_of(axis: ParallelAxis, end: int) -> str:
    if axis.texts:
        return render.shorten(axis.texts[end], _WIDTH)
    return render.number(axis.high if end else axis.low)


def _place(axis: ParallelAxis, found: float | str | None) -> float | None:
    """Where a value lies on its axis, 0 to 1; None: the run has none."""
    if found is None:
        return None
    if isinstance(found, str):
        return axis.texts.index(found) / max(len(axis.texts) - 1, 1)
    low, high = axis.low or 0.0, axis.high or 0.0
    if low > 0 and high / low > _DECADES:
        low, high, found = math.log(low), math.log(high), math.log(found)
    return (found - low) / (high - low) if high > low else 0.0
