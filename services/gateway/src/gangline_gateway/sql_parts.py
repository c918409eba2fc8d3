"""ClickHouse queries: conditions, rows with their times, and cursors of pages."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from clickhouse_connect.driver.client import Client

from gangline_schemas.mlflow_workspace import mlflow_run_id

MLFLOW_RUN = re.compile(r"[0-9a-f]{32}")


class CursorError(ValueError):
    """The text is not the cursor of a page."""

    def __init__(self) -> None:
        super().__init__("cursor must be the cursor of an earlier page of the same query")


class Where:
    """Conditions and their parameters; values are never in the SQL text."""

    def __init__(self) -> None:
        self._conditions: list[str] = []
        self.parameters: dict[str, Any] = {}

    @property
    def sql(self) -> str:
        """The clause; "" without conditions."""
        return f"WHERE {' AND '.join(self._conditions)}" if self._conditions else ""

    def add(self, condition: str, **parameters: Any) -> None:
        """Adds a condition with the values of its parameters."""
        self._conditions.append(condition)
        self.parameters |= parameters

    def among(self, column: str, values: Sequence[str]) -> None:
        """The column has one of these values; none given: any value."""
        if values:
            self.add(f"{column} IN {{{column}_in:Array(String)}}", **{f"{column}_in": list(values)})

    def runs(self, runs: Mapping[str, str]) -> None:
        """Rows of these runs that name the run's team; `runs`: team by run id."""
        owners = set(runs.values())
        if len(owners) == 1:  # a comparison of each row with its run's owner takes far longer
            self.add(
                "run_id IN {runs:Array(String)} AND team = {owner:String}",
                runs=list(runs),
                owner=owners.pop(),
            )
            return
        self.add(
            "run_id IN {runs:Array(String)} AND "
            "{owners:Array(String)}[indexOf({runs:Array(String)}, toString(run_id))] = team",
            runs=list(runs),
            owners=list(runs.values()),
        )

    def logged(self, runs: Mapping[str, str]) -> None:
        """The ids under which the points of these runs are logged, a job's or MLflow's own."""
        self.parameters["logged"] = [logged_id(run) for run in runs]

    def teams(self, teams: frozenset[str] | None) -> None:
        """Rows of these teams; None: of all."""
        if teams is not None:
            self.add("team IN {teams:Array(String)}", teams=sorted(teams))


def logged_id(run_id: str) -> str:
    """The MLflow run of a job; an id that MLflow made (32 hexadecimal digits) is that itself."""
    return run_id if MLFLOW_RUN.fullmatch(run_id) else mlflow_run_id(run_id)


def fetch(client: Client, sql: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of an answer, by column, with times in UTC."""
    given = {name: _written(value) for name, value in parameters.items()}
    answer = client.query(sql, parameters=given, tz_mode="aware")
    names = answer.column_names
    return [dict(zip(names, row, strict=True)) for row in answer.result_rows]


def ms(value: datetime) -> int:
    """Unix time in milliseconds."""
    return round(value.timestamp() * 1000)


def cursor_of(*parts: object) -> str:
    """The cursor of the page after a row with these values."""
    return ".".join(str(part) for part in parts)


def read_cursor(cursor: str, parts: int) -> list[str]:
    """The values of a cursor. Raises CursorError."""
    found = cursor.split(".")
    if len(found) != parts:
        raise CursorError
    return found


def json_cursor(values: Sequence[object]) -> str:
    """The same for values of any JSON types."""
    text = json.dumps(values, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_json_cursor(cursor: str) -> list[Any]:
    """The values of such a cursor, at least one, of any types. Raises CursorError."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        values = json.loads(base64.urlsafe_b64decode(padded.encode("ascii")))
        json.dumps(values, ensure_ascii=False).encode()  # not half of a surrogate pair
    except (ValueError, RecursionError):
        raise CursorError from None
    if not isinstance(values, list) or not values:
        raise CursorError
    if any(isinstance(value, int) and abs(value) > 2**63 for value in values):
        raise CursorError
    return values


def number(text: str) -> int:
    """A value of a cursor as a whole number. Raises CursorError."""
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise CursorError
    return int(text)


def _written(value: Any) -> Any:
    """A time as ClickHouse reads it in a parameter; other values as they are."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return value
