"""All points of runs, page by page, as Parquet or as lines of JSON; ClickHouse writes the bytes.

A page has the points between two keys. The first query finds the key behind which the page ends,
the second one reads the page, so neither the gateway nor the database holds more than one page.
"""

# ruff: noqa: S608 - SQL is built from constants; values are query parameters.
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from clickhouse_connect.driver.client import Client

from gangline_gateway.sql_parts import CursorError, Where, fetch, json_cursor, read_json_cursor

Kind = Literal["job", "mlflow"]
"""Points of jobs, reported or logged to their MLflow runs, or of runs that MLflow clients made.

Logged points of a metric that the job also reports are left out.
"""
Format = Literal["parquet", "jsonl"]
MAX_POINTS = 500_000
_PAGE = (
    "SELECT toString(r) AS run_id, toString(n) AS name, toInt64(i) AS step, t AS time_ms, "
    "v AS value, toUInt32(a) AS attempt FROM ({rows}) ORDER BY r, n, i, t, v"
)
_ENGINE_FORMATS: dict[Format, str] = {"parquet": "Parquet", "jsonl": "JSONEachRow"}


@dataclass(frozen=True, slots=True)
class _Table:
    """`keys`: the columns that order a table, with their types. `rows`: a page's statement."""

    name: str
    keys: dict[str, str]
    rows: str


_RUN_KEYS = {"run_id": "String", "name": "String", "step": "Int64"}
# At each step the newest attempt counts, and of its ranks the lowest that reported.
_REPORTED = _Table(
    "gangline.steps",
    _RUN_KEYS,
    "SELECT s.run_id AS r, s.name AS n, s.step AS i, max(s.attempt) AS a, "
    "toUnixTimestamp64Milli(argMax(s.time, (s.attempt, -toInt64(s.rank)))) AS t, "
    "argMax(s.value, (s.attempt, -toInt64(s.rank))) AS v "
    "FROM gangline.steps AS s {where} GROUP BY s.run_id, s.name, s.step",
)
# A point that a client repeated is one point. A job's points have its id, and the attempt 0.
_LOGGED = _Table(
    "gangline.metric_points",
    # To the value: a program may log any number of points of one step and time.
    {**_RUN_KEYS, "time_ms": "Int64", "value": "Float64", "is_nan": "UInt8"},
    "SELECT DISTINCT {{runs:Array(String)}}[indexOf({{logged:Array(String)}}, "
    "toString(s.run_id))] AS r, s.name AS n, s.step AS i, 0 AS a, s.time_ms AS t, "
    "if(s.is_nan, toFloat64('nan'), s.value) AS v FROM gangline.metric_points AS s {where}",
)
_FITS: dict[str, Callable[[object], bool]] = {
    "String": lambda value: isinstance(value, str),
    "Int64": lambda value: type(value) is int and -(2**63) <= value < 2**63,
    "Float64": lambda value: type(value) is float and math.isfinite(value),
    "UInt8": lambda value: type(value) is int and 0 <= value < 2**8,
}
"""Whether a cursor's value is of a key's type."""
_PARTS: dict[Kind, tuple[_Table, ...]] = {"job": (_REPORTED, _LOGGED), "mlflow": (_LOGGED,)}
"""The tables that are read one after the other. A cursor begins with the place of its table."""


@dataclass(frozen=True, slots=True)
class PointQuery:
    """Which points: of `runs` (team by run id), from the step `first` on, with one of `names`."""

    kind: Kind
    runs: dict[str, str]
    names: Sequence[str] = ()
    first: int | None = None
    limit: int = MAX_POINTS
    """Values that are read for a page. A job's last step is whole: there may be a few more."""
    format: Format = "parquet"
    cursor: str | None = None
    teams: frozenset[str] | None = None
    """For points of MLflow, whose runs the gateway does not know: the caller's teams."""


@dataclass(frozen=True, slots=True)
class PointPage:
    """`cursor`: of the next page; None: this is the last one."""

    body: bytes
    cursor: str | None


class PointReader:
    """Pages of points. Belongs to one thread, as its client does."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def page(self, wanted: PointQuery) -> PointPage:
        """The points after `wanted.cursor`, by run, name and step. Raises CursorError."""
        parts = _PARTS[wanted.kind]
        number, after = (0, []) if wanted.cursor is None else _read(wanted.cursor, parts)
        table = parts[number]
        where = _where(wanted, table)
        if after:
            _beyond(where, table, ">", after, "after")
        last = fetch(
            self._client,
            f"SELECT {', '.join(f's.{key} AS {key}' for key in table.keys)} "
            f"FROM {table.name} AS s {where.sql} "
            f"ORDER BY {', '.join(f's.{key}' for key in table.keys)} "
            f"LIMIT 1 OFFSET {wanted.limit - 1}",
            where.parameters,
        )
        cursor = json_cursor([number + 1]) if number + 1 < len(parts) else None
        if last:
            values = [int(v) if isinstance(v, bool) else v for v in last[0].values()]
            _beyond(where, table, "<=", values, "until")
            cursor = json_cursor([number, *values])
        body: bytes = self._client.raw_query(
            _PAGE.format(rows=table.rows.format(where=where.sql)),
            parameters=where.parameters,
            fmt=_ENGINE_FORMATS[wanted.format],
        )
        return PointPage(body, cursor)


def _where(wanted: PointQuery, table: _Table) -> Where:
    where = Where()
    where.logged(wanted.runs)
    if wanted.kind == "mlflow":
        where.add("run_id IN {runs:Array(String)}", runs=list(wanted.runs))
        where.teams(wanted.teams)
    elif table is _REPORTED:
        where.runs(wanted.runs)
    else:
        where.add(
            "run_id IN {logged:Array(String)} AND {owners:Array(String)}"
            "[indexOf({logged:Array(String)}, toString(run_id))] = team AND (run_id, name) "
            "NOT IN (SELECT {logged:Array(String)}[indexOf({runs:Array(String)}, "
            "toString(run_id))], name FROM gangline.steps WHERE run_id IN {runs:Array(String)})",
            runs=list(wanted.runs),
            owners=list(wanted.runs.values()),
        )
    where.among("name", wanted.names)
    if wanted.first is not None:
        where.add("step >= {first:Int64}", first=wanted.first)
    return where


def _beyond(where: Where, table: _Table, sign: str, values: Sequence[object], prefix: str) -> None:
    """Only rows whose key compares so with `values`; spelled so that the index is used."""
    ways: list[str] = []
    same: list[str] = []
    parameters: dict[str, object] = {}
    for number, ((key, kind), value) in enumerate(zip(table.keys.items(), values, strict=True)):
        given = f"{{{prefix}{number}:{kind}}}"
        parameters[f"{prefix}{number}"] = value
        ways.append(" AND ".join([*same, f"s.{key} {sign[0]} {given}"]))
        same.append(f"s.{key} = {given}")
    if sign == "<=":
        ways.append(" AND ".join(same))
    where.add(f"({' OR '.join(f'({way})' for way in ways)})", **parameters)


def _read(cursor: str, parts: Sequence[_Table]) -> tuple[int, list[object]]:
    """The place of a table and the values of its keys, none at its start. Raises CursorError."""
    number, *values = read_json_cursor(cursor)
    if type(number) is not int or not 0 <= number < len(parts):
        raise CursorError
    keys = parts[number].keys
    if len(values) not in {0, len(keys)}:
        raise CursorError
    for value, kind in zip(values, keys.values(), strict=False):
        if not _FITS[kind](value):
            raise CursorError
    return number, values
