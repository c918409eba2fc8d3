"""Parallel coordinates: the axes on which runs differ, and each run's place on them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gangline_schemas.api.runs import AxisKind, Final, Parallel, ParallelAxis, ParallelRun, Run

Value = float | str | None
Column = tuple[AxisKind, str, list[Value]]
"""An axis: its kind, its name, and the place of each run on it."""


def parallel(runs: Sequence[Run], metrics: Mapping[str, Mapping[str, Final]]) -> Parallel:
    """Parameters that are not the same in all runs, then attributes, then final metrics.

    A parameter whose values are all numbers has an axis of numbers, any other one of texts.
    """
    columns: list[Column] = []
    for name in sorted({name for run in runs for name in run.hyperparameters}):
        texts = [run.hyperparameters.get(name) for run in runs]
        if len(set(texts)) > 1:
            columns.append(("param", name, _numbers_or_texts(texts)))
    columns += [
        ("attribute", "gpu_hours", [run.gpu_seconds / 3600 for run in runs]),
        ("attribute", "cost", [run.cost for run in runs]),
    ]
    for name, by_run in metrics.items():
        finals = [by_run.get(run.run_id) for run in runs]
        columns.append(("metric", name, [None if f is None else f.value for f in finals]))
    return on_axes(columns, [(run.run_id, run.name, run.state) for run in runs])


def on_axes(columns: Sequence[Column], runs: Sequence[tuple[str, str, str]]) -> Parallel:
    """An axis for each column with a value, and each run (id, name, state) on them."""
    shown = [column for column in columns if any(value is not None for value in column[2])]
    return Parallel(
        axes=[_axis(kind, name, values) for kind, name, values in shown],
        runs=[
            ParallelRun.model_construct(  # a study has 10,000 trials
                run_id=run_id,
                name=name,
                state=state,
                values=[values[place] for _, _, values in shown],
            )
            for place, (run_id, name, state) in enumerate(runs)
        ],
    )


def _numbers_or_texts(texts: Sequence[str | None]) -> list[Value]:
    numbers: list[Value] = []
    for text in texts:
        try:
            number = None if text is None else float(text)
        except ValueError:
            return list(texts)
        if number is not None and not math.isfinite(number):
            return list(texts)
        numbers.append(number)
    return numbers


def _axis(kind: AxisKind, name: str, values: Sequence[Value]) -> ParallelAxis:
    texts = sorted({value for value in values if isinstance(value, str)})
    numbers = [value for value in values if isinstance(value, float)]
    return ParallelAxis(
        kind=kind,
        name=name,
        texts=texts,
        low=min(numbers, default=None),
        high=max(numbers, default=None),
    )
