"""A panel's query as Grafana and its ClickHouse plugin (version 4) send it.

The plugin's macros by its sources (pkg/macros/macros.go) and its documentation; the formats of
variables by Grafana's documentation. Arguments of macros hold no parenthesis here, except those of
$__conditionalAll: versions of the plugin differ in how they read these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
CLICKHOUSE, PROMETHEUS = "grafana-clickhouse-datasource", "prometheus"
ALL = "$__all"
_CONDITION = "$__conditionalAll("


def boards() -> dict[str, dict[str, Any]]:
    """The committed dashboards by the names of their files."""
    paths = sorted((FOLDER / "dashboards").glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


@dataclass(frozen=True)
class Query:
    """One query of a dashboard: of a panel, a variable or an annotation."""

    board: str
    title: str
    kind: str
    sql: str

    def __str__(self) -> str:
        return f"{self.board}: {self.title}"


def queries() -> list[Query]:
    """All SQL of all dashboards."""
    found = []
    for name, board in boards().items():
        for panel in board["panels"]:
            if panel.get("datasource", {}).get("type") == CLICKHOUSE:
                (target,) = panel["targets"]
                found.append(Query(name, panel["title"], panel["type"], target["rawSql"]))
        for variable in board["templating"]["list"]:
            if variable["type"] != "query":
                continue
            sql = variable["query"]["rawSql"]
            found.append(Query(name, f"variable {variable['name']}", "variable", sql))
        for mark in board["annotations"]["list"]:
            sql = mark["target"]["rawSql"]
            found.append(Query(name, f"annotation {mark['name']}", "annotation", sql))
    return found


@dataclass(frozen=True)
class Screen:
    """What the viewer has chosen: a time range, and values of variables (ALL, one, or several)."""

    since: datetime
    until: datetime
    interval_s: int = 20
    variables: Mapping[str, str | Sequence[str]] = field(default_factory=dict)

    def expanded(self, sql: str) -> str:
        """The statement that reaches ClickHouse."""
        sql = self._conditions(sql)
        for name, value in self.variables.items():
            values = [value] if isinstance(value, str) else value
            quoted = ",".join("'" + one.replace("'", "\\'") + "'" for one in values)
            sql = sql.replace(f"${{{name}:singlequote}}", quoted)
        sql = re.sub(r"\$__(\w+)(?:\(([^()]*)\))?", self._macro, sql)
        if "$" in sql:
            raise AssertionError(f"not expanded: {sql}")
        return sql

    def _conditions(self, sql: str) -> str:
        while (start := sql.find(_CONDITION)) >= 0:
            depth, end = 1, start + len(_CONDITION)
            while depth:
                depth += {"(": 1, ")": -1}.get(sql[end], 0)
                end += 1
            condition, _, name = sql[start + len(_CONDITION) : end - 1].rpartition(",")
            chosen = self.variables[name.strip().removeprefix("$")]
            sql = sql[:start] + ("1=1" if chosen == ALL else condition) + sql[end:]
        return sql

    def _macro(self, found: re.Match[str]) -> str:
        name, column = found[1], (found[2] or "").strip()
        since_s, until_s = int(self.since.timestamp()), int(self.until.timestamp())
        since, until = f"toDateTime({since_s})", f"toDateTime({until_s})"
        made = {
            "fromTime": since,
            "toTime": until,
            "fromTime_ms": f"fromUnixTimestamp64Milli({since_s * 1000})",
            "toTime_ms": f"fromUnixTimestamp64Milli({until_s * 1000})",
            "interval_s": str(self.interval_s),
            "timeFilter": f"{column} >= {since} AND {column} <= {until}",
            "timeInterval": f"toStartOfInterval(toDateTime({column}), "
            f"INTERVAL {self.interval_s} second)",
        }
        if name not in made or bool(column) != name.startswith(("timeF", "timeI")):
            raise AssertionError(f"no macro, or wrong arguments: {found[0]}")
        return made[name]
