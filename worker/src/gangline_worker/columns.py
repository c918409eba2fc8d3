"""A rank's reports as the columns of one message."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, SupportsIndex

from gangline_schemas.limits import (
    INT53_MAX,
    METRIC_MAX,
    METRIC_NAME_CHARS,
    METRICS_PER_STEP,
    PLAIN,
    is_torn,
)
from gangline_schemas.rank_protocol import Report

DROPPED_METRIC: Final = "report_dropped"
MESSAGE_CELLS: Final = 20_000
"""Rows times columns of one message, gaps too: the agent takes lines of up to 1 MiB."""
MESSAGE_NAME_CHARS: Final = 100_000
_PLAIN: Final = re.compile(PLAIN)

Entry = tuple[SupportsIndex, int, Mapping[str, float]]  # step, Unix ms, metrics
_Row = tuple[int, int, Mapping[str, float]]


def to_reports(entries: Sequence[Entry], dropped: int = 0) -> Iterator[Report]:
    """Turn rows of (step, Unix ms, metrics) into messages that the agent takes, in order.

    A script may log each metric by a call of its own: rows of one step become one row, and rows
    that share few names are sent in messages of their own. A row of more metrics than a message
    takes is sent in several. `dropped` as in `to_columns`.
    """
    batch: list[_Row] = []
    names: set[str] = set()
    chars = 0
    for row in _joined(_narrow(_rows(entries))):
        new = [name for name in row[2] if name not in names]
        columns, more = len(names) + len(new), sum(len(str(name)) for name in new)
        if batch and (
            columns >= METRICS_PER_STEP
            or columns * (len(batch) + 1) > MESSAGE_CELLS
            or chars + more > MESSAGE_NAME_CHARS
        ):
            yield to_columns(batch)
            batch, names, chars = [], set(), 0
            new, more = list(row[2]), sum(len(str(name)) for name in row[2])
        batch.append(row)
        names.update(new)
        chars += more
    yield to_columns(batch, dropped)


def _rows(entries: Iterable[Entry]) -> Iterator[_Row]:
    """Those whose step is an integer from 0 on."""
    for given, time_ms, metrics in entries:
        if (step := whole_step(given)) is not None:
            yield step, time_ms, metrics


def _narrow(rows: Iterable[_Row]) -> Iterator[_Row]:
    """Rows with too many metrics in parts; a message keeps one column for what was dropped."""
    for step, time_ms, metrics in rows:
        if len(metrics) < METRICS_PER_STEP:
            yield step, time_ms, metrics
            continue
        rest = iter(metrics.items())
        while part := dict(islice(rest, METRICS_PER_STEP - 1)):
            yield step, time_ms, part


def _joined(rows: Iterable[_Row]) -> Iterator[_Row]:
    """Rows side by side of one step and with other names are one, at the time of the last."""
    step, time_ms, metrics = -1, 0, dict[str, float]()
    for row in rows:
        fits = len(metrics) + len(row[2]) < METRICS_PER_STEP
        if row[0] == step and fits and metrics.keys().isdisjoint(row[2]):
            metrics.update(row[2])
            time_ms = row[1]
            continue
        if step >= 0:
            yield step, time_ms, metrics
        step, time_ms, metrics = row[0], row[1], dict(row[2])
    if step >= 0:
        yield step, time_ms, metrics


def to_columns(entries: Sequence[Entry], dropped: int = 0) -> Report:
    """Turn rows of (step, Unix ms, metrics) into one columnar message.

    A metric that a step did not report, or that is not a finite number up to 1e300, is None there.
    Names beyond the limit, or that no metric can have, are left out. So are rows whose step is not
    an integer from 0 on, unless all are. `dropped` > 0 is added to the last row as the metric
    `report_dropped`.
    """
    rows = list(_rows(entries))
    every_name = dict.fromkeys(name for _, _, metrics in rows for name in metrics)
    names = [name for name in every_name if is_metric_name(name)][: METRICS_PER_STEP - 1]
    columns: dict[str, tuple[float | None, ...]] = {}
    for name in names:
        columns[name] = tuple(figure(metrics.get(name)) for _, _, metrics in rows)
    if dropped and rows:
        columns[DROPPED_METRIC] = (*(None for _ in rows[1:]), float(dropped))
    return Report(
        step=tuple(step for step, _, _ in rows),
        time_ms=tuple(time_ms for _, time_ms, _ in rows),
        metrics=columns,
    )


def whole_step(value: SupportsIndex) -> int | None:
    """A step as a whole number; None for what is none, or is out of bounds."""
    try:
        step = operator.index(value)
    except TypeError:  # a script's slip must not cost it its line to the agent
        return None
    return step if 0 <= step <= INT53_MAX else None


def figure(value: float | None) -> float | None:
    """A metric's value as it can be sent; None for what is not a finite number up to 1e300."""
    found = number(value)
    return found if found is not None and abs(found) <= METRIC_MAX else None


def is_metric_name(name: str) -> bool:
    """Whether a metric can have this name: 1 to 256 characters, none of them for control."""
    if not isinstance(name, str) or not 0 < len(name) <= METRIC_NAME_CHARS:
        return False
    return _PLAIN.match(name) is not None and not is_torn(name)


def as_now(value: Any) -> Any:
    """The value as it is now: a script may overwrite its tensor or its array in the next step.

    A tensor on a GPU is copied there, and not waited for; nor is a copy that the SDK made there.
    """
    if not hasattr(value, "item"):  # neither a tensor nor an array
        return value
    if getattr(value, "is_cuda", False):
        return value.detach().clone()
    return number(value)


def number(value: float | None) -> float | None:
    """A metric's value as a float; None for what is not a number."""
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
