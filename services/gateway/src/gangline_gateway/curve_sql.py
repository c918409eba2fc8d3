"""SQL of curves: rows of `steps` in buckets of steps, read from its roll-ups where they are.

The table has roll-ups (projections) by 1,000 steps, by 100 steps and by run, and ClickHouse reads
one where a query has the same keys and aggregates. So a bucket is a multiple of its base.
"""

# ruff: noqa: S608 - SQL is built from constants; values are query parameters.
from __future__ import annotations

BASES = (1000, 100)
"""Widths in steps of the roll-ups."""
_AGGREGATES = (
    "min(step) AS first_step, max(step) AS last_step, argMax(value, step) AS last_value, "
    "argMax(time, step) AS last_time, min(value) AS low, max(value) AS high"
)
_NEWEST = "toInt64(attempt) * 4294967296 - toInt64(rank)"
"""Greater for a newer attempt, and in an attempt for a lower rank."""


def base_of(width: int) -> int:
    """The steps of each part that buckets of `width` steps are made of: a roll-up's, or all."""
    return next((base for base in BASES if base <= width), width)


def rounded(width: int) -> int:
    """The width of buckets that is nearest above and a multiple of its roll-up's."""
    base = base_of(width)
    return -(-width // base) * base


def buckets(where: str, width: int) -> str:
    """Buckets of `width` steps (as `rounded` gives it): run, team, name, extremes, last value.

    Of overlapping attempts the newest counts, with its lowest rank: for each width of the
    roll-up, or for each bucket where there is none. `where` is a clause on the columns run_id,
    team, name and on `part_of(width)`.
    """
    part, base = part_of(width)
    rows = (
        f"SELECT run_id, team, name, {part} AS part, attempt, rank, {_AGGREGATES} "
        f"FROM gangline.steps {where} GROUP BY run_id, name, part, attempt, rank, team"
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


def thinned(where: str, size: int) -> str:
    """The same rows of single steps, thinned by Largest Triangle Three Buckets (Steinarsson 2013).

    The clause `where` is as in `buckets` of width 1; `size` is the number of points of a curve.
    """
    every = buckets(where, 1)
    return (
        f"SELECT * FROM ({every}) WHERE (run_id, name, step) IN ("
        "SELECT run_id, name, arrayJoin(arrayMap(p -> toUInt64(tupleElement(p, 1)), chosen)) FROM ("
        "SELECT run_id, name, "
        f"largestTriangleThreeBuckets({int(size)})(toFloat64(step), value) AS chosen "
        f"FROM ({every}) GROUP BY run_id, name)) ORDER BY run_id, name, step"
    )


def latest(where: str) -> str:
    """Each metric of each run: last step with its value, lowest, highest value of all attempts.

    Of the ranks the lowest that reported the metric counts.
    """
    rows = (
        f"SELECT run_id, team, name, attempt, rank, {_AGGREGATES} "
        f"FROM gangline.steps {where} GROUP BY run_id, name, attempt, rank, team"
    )
    columns = ("first_step", "last_step", "last_value", "low", "high")
    lowest = ", ".join(f"argMin(r.{column}, r.rank) AS {column}" for column in columns)
    attempts = (
        f"SELECT run_id, team, name, attempt, {lowest} FROM ({rows}) AS r "
        "GROUP BY run_id, team, name, attempt"
    )
    # One number of 64 bits, as a step has 53: faster than a tuple.
    newest = "a.last_step * 2048 + least(a.attempt, 2047)"
    return (
        "SELECT run_id, team, name, max(a.last_step) AS step, "
        f"argMax(a.last_value, {newest}) AS value, "
        "min(a.low) AS low, max(a.high) AS high, min(a.first_step) AS first_step "
        f"FROM ({attempts}) AS a GROUP BY run_id, team, name"
    )
