"""SQL of curves: rows of `steps` and `metric_points` in buckets of steps, read from roll-ups.

The tables have roll-ups (projections) by steps and by run, and ClickHouse reads one where a query
has the same keys and aggregates. So a bucket is a multiple of its base.

The points of a job's MLflow run are an attempt before all others, of number 0: a step that the job
also reported by `report()` counts once, with that value. Points that are no number are left out.
"""

# ruff: noqa: S608 - SQL is built from constants; values are query parameters.
from __future__ import annotations

BASES = (1000, 100)
"""Widths in steps of the roll-ups."""
_AGGREGATES = (
    "min(step) AS first_step, max(step) AS last_step, argMax(value, step) AS last_value, "
    "argMax(time, step) AS last_time, min(value) AS low, max(value) AS high"
)
_POINT_AGGREGATES = (
    "min(step) AS first_step, max(step) AS last_step, "
    "argMax(value, (step, time_ms, value)) AS last_value, "
    "argMax(time_ms, (step, time_ms, value)) AS last_ms, min(value) AS low, max(value) AS high"
)
_JOB = "{runs:Array(String)}[indexOf({logged:Array(String)}, toString(g.run_id))]"
_ALL_JOBS = (
    "INNER JOIN (SELECT DISTINCT job_id, mlflow_run_id FROM gangline.runs) AS j "
    "ON j.mlflow_run_id = g.run_id"
)
_LATEST_MS = 7_258_118_400_000
"""A client may log any time; later ones than the year 2200 are none."""
_NEWEST = "toInt64(attempt) * 4294967296 - toInt64(rank)"
"""Greater for a newer attempt, and in an attempt for a lower rank."""


def base_of(width: int) -> int:
    """The steps of each part that buckets of `width` steps are made of: a roll-up's, or all."""
    return next((base for base in BASES if base <= width), width)


def rounded(width: int) -> int:
    """The width of buckets that is nearest above and a multiple of its roll-up's."""
    base = base_of(width)
    return -(-width // base) * base


def buckets(where: str, width: int, *, logged: bool = True, single: bool = False) -> str:
    """Buckets of `width` steps (as `rounded` gives it): run, team, name, extremes, last value.

    Of overlapping attempts the newest counts, with its lowest rank: for each width of the
    roll-up, or for each bucket where there is none. `where` is a clause on the columns run_id,
    team, name and on `part_of(width)`. Not `logged`: without points of MLflow. `single`: each run
    has one attempt and rank, and no points of MLflow, so there is nothing to choose from.
    """
    part, base = part_of(width)
    if single:
        return (
            "SELECT g.run_id AS run_id, g.name AS name, toInt64(g.first_step) AS first_step, "
            "toInt64(g.last_step) AS step, g.last_time AS time, g.last_value AS value, "
            f"g.low AS low, g.high AS high FROM (SELECT run_id, name, {_AGGREGATES} "
            f"FROM gangline.steps {where} "
            f"GROUP BY run_id, name, intDiv({part}, {width // base})) AS g"
        )
    reported = (
        f"SELECT run_id, team, name, {part} AS part, attempt, rank, {_AGGREGATES} "
        f"FROM gangline.steps {where} GROUP BY run_id, name, part, attempt, rank, team"
    )
    points = (
        f"SELECT run_id, team, name, {part} AS part, is_nan, {_POINT_AGGREGATES} "
        f"FROM gangline.metric_points {_of_points(where)} "
        "GROUP BY run_id, name, part, is_nan, team"
    )
    rows = (
        "SELECT s.run_id AS run_id, s.team AS team, s.name AS name, toInt64(s.part) AS part, "
        "s.attempt AS attempt, s.rank AS rank, toInt64(s.first_step) AS first_step, "
        "toInt64(s.last_step) AS last_step, s.last_value AS last_value, "
        f"s.last_time AS last_time, s.low AS low, s.high AS high FROM ({reported}) AS s"
    )
    if logged:
        rows += (
            f" UNION ALL SELECT {_JOB} AS run_id, g.team AS team, g.name AS name, g.part AS part, "
            "toUInt32(0) AS attempt, toUInt32(0) AS rank, g.first_step AS first_step, "
            "g.last_step AS last_step, g.last_value AS last_value, fromUnixTimestamp64Milli("
            f"least(greatest(g.last_ms, 0), {_LATEST_MS}), 'UTC') AS last_time, g.low AS low, "
            f"g.high AS high FROM ({points}) AS g WHERE g.is_nan = 0"
        )
    columns = ("first_step", "last_step", "last_value", "last_time", "low", "high")
    newest = ", ".join(f"argMax(r.{column}, {_NEWEST}) AS {column}" for column in columns)
    parts = (
        f"SELECT run_id, team, name, part, {newest} FROM ({rows}) AS r "
        f"GROUP BY run_id, team, name, part"
    )
    return (
        "SELECT run_id, name, min(p.first_step) AS first_step, max(p.last_step) AS step, "
        "argMax(p.last_time, p.last_step) AS time, argMax(p.last_value, p.last_step) AS value, "
        "min(p.low) AS low, max(p.high) AS high "
        f"FROM ({parts}) AS p GROUP BY run_id, name, intDiv(part, {width // base})"
    )


def part_of(width: int) -> tuple[str, int]:
    """The expression of steps that a clause of `buckets` compares, and the steps of each part."""
    base = base_of(width)
    return f"intDiv(step, {base})", base


def thinned(where: str, size: int, *, logged: bool = True, single: bool = False) -> str:
    """The same rows of single steps, thinned by Largest Triangle Three Buckets (Steinarsson 2013).

    The clause `where` is as in `buckets` of width 1; `size` is the number of points of a curve.
    """
    every = buckets(where, 1, logged=logged, single=single)
    return (
        f"SELECT * FROM ({every}) WHERE (run_id, name, step) IN ("
        "SELECT run_id, name, arrayJoin(arrayMap(p -> toInt64(tupleElement(p, 1)), chosen)) FROM ("
        "SELECT run_id, name, "
        f"largestTriangleThreeBuckets({int(size)})(toFloat64(step), value) AS chosen "
        f"FROM ({every}) GROUP BY run_id, name)) ORDER BY run_id, name, step"
    )


def spans(where: str) -> str:
    """First and last step of each run, how many pairs of attempt and rank, whether MLflow's.

    Cheaper than `latest`: it reads no values. A run with points of both kinds has two rows.
    """
    ends = "toInt64(min(g.step)) AS first_step, toInt64(max(g.step)) AS last_step"
    return (
        "SELECT toString(s.run_id) AS run, min(s.low) AS first_step, max(s.high) AS last_step, "
        "count() AS writers, 0 AS logged FROM (SELECT run_id, attempt, rank, "
        "toInt64(min(step)) AS low, toInt64(max(step)) AS high "
        f"FROM gangline.steps {where} GROUP BY run_id, attempt, rank) AS s GROUP BY s.run_id "
        f"UNION ALL SELECT {_JOB} AS run, {ends}, 1 AS writers, 1 AS logged "
        f"FROM gangline.metric_points AS g {_of_points(where)} AND is_nan = 0 GROUP BY g.run_id"
    )


def _of_points(where: str) -> str:
    """The clause for `metric_points`, whose runs have the ids of MLflow."""
    return where.replace("{runs:", "{logged:")


def latest(where: str) -> str:
    """Each metric of each run: last step with its value, lowest, highest value of all attempts.

    Of the ranks the lowest that reported the metric counts. If `where` names no runs, those of
    all jobs are read.
    """
    rows = (
        f"SELECT run_id, team, name, attempt, rank, {_AGGREGATES} "
        f"FROM gangline.steps {where} GROUP BY run_id, name, attempt, rank, team"
    )
    columns = ("last_step", "last_value", "low", "high")
    lowest = ", ".join(f"argMin(r.{column}, r.rank) AS {column}" for column in columns)
    attempts = (
        f"SELECT run_id, team, name, attempt, {lowest} FROM ({rows}) AS r "
        "GROUP BY run_id, team, name, attempt"
    )
    logged = (
        f"SELECT run_id, team, name, is_nan, {_POINT_AGGREGATES} "
        f"FROM gangline.metric_points {_of_points(where)} GROUP BY run_id, name, is_nan, team"
    )
    run, join = (_JOB, "") if "{runs:" in where else ("j.job_id", _ALL_JOBS)
    attempts = (
        "SELECT s.run_id AS run_id, s.team AS team, s.name AS name, s.attempt AS attempt, "
        "toInt64(s.last_step) AS last_step, s.last_value AS last_value, "
        f"s.low AS low, s.high AS high FROM ({attempts}) AS s "
        f"UNION ALL SELECT {run} AS run_id, g.team AS team, g.name AS name, "
        "toUInt32(0) AS attempt, g.last_step AS last_step, g.last_value AS last_value, "
        f"g.low AS low, g.high AS high FROM ({logged}) AS g {join} WHERE g.is_nan = 0"
    )
    # One number of 64 bits, as a step has 53: faster than a tuple.
    newest = "a.last_step * 2048 + least(a.attempt, 2047)"
    return (
        "SELECT run_id, team, name, max(a.last_step) AS step, "
        f"argMax(a.last_value, {newest}) AS value, "
        "min(a.low) AS low, max(a.high) AS high "
        f"FROM ({attempts}) AS a GROUP BY run_id, team, name"
    )
