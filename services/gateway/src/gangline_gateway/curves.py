"""Curves and latest values of metrics, from ClickHouse; smoothing and axes are computed here.

A curve has about as many points as are asked for. A point is a bucket of steps: the value of its
last step, with the lowest and highest value of the bucket.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from clickhouse_connect.driver.client import Client
from pydantic import TypeAdapter

from gangline_gateway import curve_sql
from gangline_gateway.sql_parts import Where, fetch
from gangline_gateway.steps_at import Attempt, steps_at
from gangline_schemas.api.runs import Axis, Curve, Final, Point, Sampling
from gangline_schemas.system_metrics import PLATFORM, PREFIX, is_system

MAX_POINTS = 5000
ALL_POINTS = 500_000
"""Points of an answer: if it has many curves, each has fewer."""
THINNED_VALUES = 2_000_000
"""Values that Largest Triangle Three Buckets may read: it holds them in memory."""
_SHAPE_POINTS = 1000
"""Points of the curve that finds the steps of a range of time or tokens."""
TOKENS = "tokens"
"""The metric that counts the tokens that a run has trained on."""

_POINTS: TypeAdapter[list[Point]] = TypeAdapter(list[Point])
Steps = dict[str, tuple[int, int]]
"""First and last step by run."""


class CurveError(ValueError):
    """The curves cannot be read so; `field` is the parameter of the query to change."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class CurveQuery:
    """Which curves, and how: `first` to `last` is a range of the axis (None: open)."""

    runs: Mapping[str, str] = field(default_factory=dict)
    """Team by run id; rows of other teams are ignored."""
    names: Sequence[str] = ()
    points: int = 500
    axis: Axis = "step"
    first: float | None = None
    last: float | None = None
    smoothing: float = 0.0
    sampling: Sampling = "bucket"
    logged: bool = True
    """Whether points of MLflow are read: without any, reading them takes time for nothing."""
    single: bool = False
    """Whether each run has one attempt and rank, and no points of MLflow."""


class CurveReader:
    """Queries about metrics. Belongs to one thread, as its client does."""

    def __init__(self, client: Client) -> None:
        self._rows = partial(fetch, client)

    def names(self, runs: Mapping[str, str], *, system: bool = False) -> list[str]:
        """Names of metrics of the runs (team by id), sorted: the system's, or all others."""
        found = {row["name"] for row in self._latest(_of(runs, system=system))}
        return sorted(found)

    def team_of(self, run_id: str, teams: frozenset[str] | None) -> str | None:
        """The team that logged points to a run of MLflow; None if none of `teams` (None: any)."""
        where = Where()
        where.add("run_id = {run:String}", run=run_id)
        where.teams(teams)
        rows = self._rows(
            f"SELECT team FROM gangline.metric_points {where.sql} LIMIT 1",  # noqa: S608
            where.parameters,
        )
        return str(rows[0]["team"]) if rows else None

    def latest(self, runs: Mapping[str, str]) -> dict[str, dict[str, Final]]:
        """Each metric at its last step, with its extremes of all attempts: by name, then by run.

        Without those of the system.
        """
        found: dict[str, dict[str, Final]] = {}
        for row in sorted(
            self._latest(_of(runs, system=False)), key=lambda row: (row["name"], row["run_id"])
        ):
            final = Final(step=row["step"], value=row["value"], low=row["low"], high=row["high"])
            found.setdefault(row["name"], {})[row["run_id"]] = final
        return found

    def steps_at(self, jobs: Mapping[str, Attempt], at: datetime) -> dict[str, int]:
        """The newest step of each of these attempts at a time, by job."""
        return steps_at(self._rows, jobs, at)

    def curves(self, asked: CurveQuery) -> list[Curve]:
        """The curves, by run and name; one without values in the range is left out.

        Raises CurveError.
        """
        # Steps of the system's metrics are seconds; those by MLflow, without a node, are counted.
        kinds: dict[int, list[str]] = {}
        for name in asked.names:
            kinds.setdefault(is_system(name) * min(name.count("/"), 2), []).append(name)
        found = [
            curve for names in kinds.values() for curve in self._curves(replace(asked, names=names))
        ]
        return sorted(found, key=lambda curve: (curve.run_id, curve.name))

    def _curves(self, asked: CurveQuery) -> list[Curve]:
        steps, asked = self._steps(asked)
        if not steps:
            return []
        origins = self._origins(asked, steps)
        if asked.axis == "step":
            steps = _clipped(asked, steps)
        elif asked.first is not None or asked.last is not None:
            whole = replace(asked, first=None, last=None, smoothing=0.0, sampling="bucket")
            shapes = self._read(replace(whole, points=_SHAPE_POINTS), steps)
            steps = _steps_of_range(asked, [_placed(each, whole, origins) for each in shapes])
        if not steps:
            return []
        placed = (_placed(curve, asked, origins) for curve in self._read(asked, steps))
        return [curve for curve in placed if curve.points]

    def _steps(self, asked: CurveQuery) -> tuple[Steps, CurveQuery]:
        """All steps of each run that has one of the metrics; what else is known of its rows."""
        found: Steps = {}
        where = _of(asked.runs, asked.names)
        rows = self._rows(curve_sql.spans(where.sql), where.parameters)
        for row in rows:
            _widen(found, row["run"], row["first_step"], row["last_step"])
        logged = any(row["logged"] for row in rows)
        single = not logged and all(row["writers"] == 1 for row in rows)
        return found, replace(asked, logged=logged, single=single)

    def _read(self, asked: CurveQuery, steps: Steps) -> list[Curve]:
        most = ALL_POINTS // max(1, len(steps) * len(asked.names))
        size = max(1, min(asked.points, MAX_POINTS, most))
        longest = max(high - low + 1 for low, high in steps.values())
        if asked.sampling == "lttb":
            values = sum(high - low + 1 for low, high in steps.values()) * len(asked.names)
            if values > THINNED_VALUES:
                raise CurveError(
                    "sampling",
                    f"lttb reads at most {THINNED_VALUES:,} values and these curves have up to "
                    f"{values:,}; ask for fewer runs or names, for a range, or for buckets",
                )
            where = _of_steps(asked, steps, 1)
            every = curve_sql.thinned(where.sql, size, logged=asked.logged, single=asked.single)
            rows = self._rows(every, where.parameters)
        else:
            width = curve_sql.rounded(-(-longest // size))
            where = _of_steps(asked, steps, width)
            every = curve_sql.buckets(where.sql, width, logged=asked.logged, single=asked.single)
            rows = self._rows(f"{every} ORDER BY run_id, name, step", where.parameters)
        curves: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in rows:
            row["x"] = row["step"]
            curves.setdefault((row.pop("run_id"), row.pop("name")), []).append(row)
        # All points of a curve at once: that takes half the time.
        return [
            Curve(run_id=run, name=name, points=_POINTS.validate_python(found))
            for (run, name), found in curves.items()
        ]

    def _origins(self, asked: CurveQuery, steps: Steps) -> dict[str, _Origin]:
        """The origin of the axis, by run of `steps`; the axis of steps needs none."""
        runs = {run: asked.runs[run] for run in steps}
        if asked.axis == "tokens":
            counted = CurveQuery(runs, (TOKENS,), points=MAX_POINTS)
            known, counted = self._steps(counted)
            if not known:
                raise CurveError("axis", f"none of the runs reports the metric {TOKENS}")
            return {
                curve.run_id: _Origin(
                    steps=[point.step for point in curve.points],
                    tokens=[point.value for point in curve.points],
                )
                for curve in self._read(counted, known)
            }
        if asked.axis == "time":
            starts = self._starts(runs)
            unknown = {
                run: (first, first) for run, (first, _) in steps.items() if run not in starts
            }
            if unknown:  # their first step is the start
                for curve in self._read(replace(asked, sampling="bucket"), unknown):
                    starts.setdefault(curve.run_id, curve.points[0].time)
            return {run: _Origin(started=at) for run, at in starts.items()}
        return {}

    def _starts(self, runs: Mapping[str, str]) -> dict[str, datetime]:
        where = Where()
        where.add("job_id IN {jobs:Array(String)}", jobs=list(runs))
        rows = self._rows(
            f"SELECT job_id, started_at FROM gangline.run_list {where.sql}",  # noqa: S608
            where.parameters,
        )
        return {row["job_id"]: row["started_at"] for row in rows if row["started_at"]}

    def _latest(self, where: Where) -> list[dict[str, Any]]:
        return self._rows(curve_sql.latest(where.sql), where.parameters)


@dataclass(frozen=True, slots=True)
class _Origin:
    started: datetime | None = None
    steps: Sequence[int] = ()
    tokens: Sequence[float] = ()


def _of(
    runs: Mapping[str, str], names: Sequence[str] | None = None, *, system: bool | None = None
) -> Where:
    """Rows of these runs and names; `system`: metrics of the system alone, or of programs alone."""
    where = Where()
    where.runs(runs)
    where.logged(runs)
    if system:
        where.add("startsWith(name, {system:String})", system=PREFIX)
    elif system is not None:
        where.add(
            "NOT startsWith(name, {system:String}) AND NOT startsWith(name, {platform:String})",
            system=PREFIX,
            platform=PLATFORM,
        )
    if names is not None:
        where.add("name IN {names:Array(String)}", names=list(names))
    return where


def _of_steps(asked: CurveQuery, steps: Steps, width: int) -> Where:
    """Rows of these steps of each run, in whole parts of a roll-up."""
    where = _of({run: asked.runs[run] for run in steps}, asked.names)
    part, base = curve_sql.part_of(width)
    lows, highs = (
        [_part(step, base) for step in ends] for ends in zip(*steps.values(), strict=True)
    )
    where.add(f"{part} BETWEEN {{low:Int64}} AND {{high:Int64}}", low=min(lows), high=max(highs))
    if len({*lows}) > 1 or len({*highs}) > 1:
        where.add(
            f"{part} BETWEEN {{lows:Array(Int64)}}[indexOf({{runs:Array(String)}}, "
            "toString(run_id))] AND "
            "{highs:Array(Int64)}[indexOf({runs:Array(String)}, toString(run_id))]",
            lows=lows,
            highs=highs,
        )
    return where


def _part(step: int, base: int) -> int:
    """As ClickHouse's intDiv, which rounds towards zero: MLflow's steps may be negative."""
    return step // base if step >= 0 else -(-step // base)


def _widen(steps: Steps, run: str, first: int, last: int) -> None:
    low, high = steps.get(run, (first, last))
    steps[run] = (min(low, first), max(high, last))


def _clipped(asked: CurveQuery, steps: Steps) -> Steps:
    """The steps that lie in the range."""
    first, last = (None if end is None else int(end) for end in (asked.first, asked.last))
    clipped = {
        run: (low if first is None else max(low, first), high if last is None else min(high, last))
        for run, (low, high) in steps.items()
    }
    return {run: (low, high) for run, (low, high) in clipped.items() if low <= high}


def _steps_of_range(asked: CurveQuery, shapes: Sequence[Curve]) -> Steps:
    """The steps of a range of time or tokens, by whole curves; a point too many at both ends."""
    found: Steps = {}
    for shape in shapes:
        xs = [point.x for point in shape.points]
        first = 0 if asked.first is None else max(0, bisect_left(xs, asked.first) - 1)
        last = len(xs) if asked.last is None else bisect_right(xs, asked.last) + 1
        if inside := shape.points[first:last]:
            _widen(found, shape.run_id, inside[0].first_step, inside[-1].step)
    return found


def _placed(curve: Curve, asked: CurveQuery, origins: Mapping[str, _Origin]) -> Curve:
    """The curve on its axis, within the range, and smoothed."""
    points = curve.points
    if asked.axis != "step":
        origin = origins.get(curve.run_id)
        if origin is None:
            return curve.model_copy(update={"points": []})
        points = [point.model_copy(update={"x": _x(point, origin)}) for point in points]
    if asked.smoothing:
        smooth = smoothed([point.value for point in points], asked.smoothing)
        points = [
            point.model_copy(update={"smoothed": value})
            for point, value in zip(points, smooth, strict=True)
        ]
    first, last = asked.first, asked.last
    if first is not None or last is not None:
        points = [
            point
            for point in points
            if (first is None or point.x >= first) and (last is None or point.x <= last)
        ]
    return curve.model_copy(update={"points": points})


def _x(point: Point, origin: _Origin) -> float:
    if origin.started is not None:
        return (point.time - origin.started).total_seconds()
    return between(point.step, origin.steps, origin.tokens)


def between(at: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """The value at `at` of a line through points with rising `xs`; 0, 0 is its first point."""
    index = bisect_left(xs, at)
    if index == len(xs):
        return ys[-1]
    x1, y1 = xs[index], ys[index]
    x0, y0 = (xs[index - 1], ys[index - 1]) if index else (0.0, 0.0)
    return y1 if x1 == x0 else y0 + (y1 - y0) * (at - x0) / (x1 - x0)


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Exponential moving average with weight 0 to 1 of the past, without bias to zero.

    y_n = (w y_{n-1} + (1 - w) x_n), divided by 1 - w^n, as TensorBoard and Adam do.
    """
    found, mean, share = [], 0.0, 1.0
    for value in values:
        mean = weight * mean + (1 - weight) * value
        share *= weight
        found.append(mean / (1 - share))
    return found
