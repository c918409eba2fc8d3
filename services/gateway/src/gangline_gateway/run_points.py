"""All points of runs, page by page, as Parquet or as lines of JSON; ClickHouse writes the bytes.

A page has the points between two keys. The first query finds the key behind which the page ends,
the second one reads the page, so neither the gateway nor the database holds more than one page.
"""

# ruff: noqa: S608 - SQL is built from constants; values are query parameters.
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from clickhouse_connect.driver.client import Client

from gangline_gateway.sql_parts import CursorError, Where, fetch, json_cursor, read_json_cursor

Kind = Literal["job", "mlflow"]
"""Points that workers of jobs reported, or that MLflow clients logged."""
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
_TABLES: dict[Kind, _Table] = {
    # At each step the newest attempt counts, and of its ranks the lowest that reported.
    "job": _Table(
        "gangline.steps",
        _RUN_KEYS,
        "SELECT s.run_id AS r, s.name AS n, s.step AS i, max(s.attempt) AS a, "
        "toUnixTimestamp64Milli(argMax(s.time, (s.attempt, -toInt64(s.rank)))) AS t, "
        "argMax(s.value, (s.attempt, -toInt64(s.rank))) AS v "
        "FROM gangline.steps AS s {where} GROUP BY s.run_id, s.name, s.step",
    ),
    # A point that a client repeated is one point.
    "mlflow": _Table(
        "gangline.metric_points",
        {**_RUN_KEYS, "time_ms": "Int64"},
        "SELECT DISTINCT s.run_id AS r, s.name AS n, s.step AS i, 1 AS a, s.time_ms AS t, "
        "if(s.is_nan, toFloat64('nan'), s.value) AS v FROM gangline.metric_points AS s {where}",
    ),
}


@dataclass(frozen=True, slots=True)
class PointQuery:
    """Which points: of `runs` (team by run id), from the step `first` on, with one of `names`."""

    kind: Kind
    runs: dict[str, str]
    names: Sequence[str] = ()
    first: int | None = None
    limit: int = MAX_POINTS
    """Points of a page. The last step of a page is whole, so there may be a few more."""
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
        table = _TABLES[wanted.kind]
        where = _where(wanted)
        if wanted.cursor is not None:
            _beyond(where, table, ">", _read(wanted.cursor, table), "after")
        last = fetch(
            self._client,
            f"SELECT {', '.join(f's.{key} AS {key}' for key in table.keys)} "
            f"FROM {table.name} AS s {where.sql} "
            f"ORDER BY {', '.join(f's.{key}' for key in table.keys)} "
            f"LIMIT 1 OFFSET {wanted.limit - 1}",
            where.parameters,
        )
        cursor = None
        if last:
            values = [last[0][key] for key in table.keys]
            _beyond(where, table, "<=", values, "until")
            cursor = json_cursor(values)
        body: bytes = self._client.raw_query(
            _PAGE.format(rows=table.rows.format(where=where.sql)),
            parameters=where.parameters,
            fmt=_ENGINE_FORMATS[wanted.format],
        )
        return PointPage(body, cursor)


def _where(wanted: PointQuery) -> Where:
    where = Where()
    if wanted.kind == "job":
        where.runs(wanted.runs)
    else:
        where.add("run_id IN {runs:Array(String)}", runs=list(wanted.runs))
        where.teams(wanted.teams)
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


def _read(cursor: str, table: _Table) -> list[object]:
    values = read_json_cursor(cursor, len(table.keys))
    for value, kind in zip(values, table.keys.values(), strict=True):
        if kind == "String" and not isinstance(value, str):
            raise CursorError
        if kind == "Int64" and (type(value) is not int or not -(2**63) <= value < 2**63):
            raise CursorError
    return values
