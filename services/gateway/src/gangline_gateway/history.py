"""Reads history from ClickHouse: runs, logs, checkpoints.

Queries use a service token and see the rows of all teams, so a route passes its user's teams as
`teams` (None: all). A client belongs to one thread. Errors of the client
(clickhouse_connect.driver.exceptions) are not caught here.
"""

# ruff: noqa: S608 - SQL is built from constants; values are query parameters.
from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from clickhouse_connect.driver.client import Client

from gangline_gateway.log_pages import LogFilter, last_lines, log_page
from gangline_gateway.prices import COST, parameters
from gangline_gateway.run_filter import RunQuery
from gangline_gateway.sql_parts import Where, fetch
from gangline_schemas.api.checkpoints import Checkpoint
from gangline_schemas.api.logs import LogLine, LogPage
from gangline_schemas.api.runs import MAX_TAGS, Run
from gangline_schemas.gpu_prices import GpuPrices
from gangline_schemas.run_search import FoundRun

MAX_PAGE = 1000
MAX_RUNS = 100


@dataclass(frozen=True, slots=True)
class HistoryRun:
    """A run, and the spec of its job as JSON without code_diff."""

    run: Run
    spec: str


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list; an empty field accepts all."""

    teams: frozenset[str] | None = None
    states: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    name_contains: str = ""
    submitted_from: datetime | None = None
    submitted_before: datetime | None = None
    where: str = ""
    """In the filter language of `run_filter`."""
    order_by: tuple[str, ...] = ()


_EXPRESSIONS = {"run_id": "job_id AS run_id", "cost": f"{COST} AS cost"}
_RUN_COLUMNS = ", ".join(
    _EXPRESSIONS.get(name, name) for name in (*Run.model_fields, "spec") if name != "tags"
)


class History:
    """Queries about runs. Each method sends one or two."""

    def __init__(self, client: Client, prices: GpuPrices | None = None) -> None:
        self._rows = partial(fetch, client)
        self._prices = prices or GpuPrices()

    def runs(
        self, wanted: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> list[FoundRun]:
        """The runs of a page and one more, newest first unless ordered.

        Raises CursorError and FilterError.
        """
        where = Where()
        wanted = wanted or RunFilter()
        where.teams(wanted.teams)
        where.among("state", wanted.states)
        where.among("user", wanted.users)
        where.among("project", wanted.projects)
        if wanted.name_contains:
            where.add("position(name, {text:String}) > 0", text=wanted.name_contains)
        if wanted.submitted_from is not None:
            where.add("submitted_at >= {since:DateTime64(3)}", since=wanted.submitted_from)
        if wanted.submitted_before is not None:
            where.add("submitted_at < {until:DateTime64(3)}", until=wanted.submitted_before)
        query = RunQuery(wanted.where, wanted.order_by)
        if cursor is not None:
            query.after(query.read(cursor))
        for condition in query.conditions:
            where.add(condition)
        where.parameters |= query.parameters | parameters(self._prices)
        rows = self._rows(
            f"SELECT {_RUN_COLUMNS}, {query.columns} FROM gangline.run_list AS r "
            f"{query.join} {where.sql} ORDER BY {query.order} LIMIT {page_size(limit) + 1}",
            where.parameters,
        )
        return [
            FoundRun(run=found.run, order=query.values(row))
            for row, found in zip(rows, self._with_tags(rows), strict=True)
        ]

    def run(self, job_id: str, teams: frozenset[str] | None = None) -> HistoryRun | None:
        """One run; None if it does not exist or belongs to another team."""
        found = self.some_runs([job_id], teams)
        return found[0] if found else None

    def some_runs(
        self, job_ids: Sequence[str], teams: frozenset[str] | None = None
    ) -> list[HistoryRun]:
        """Those of these runs that exist, in the given order."""
        where = Where()
        where.teams(teams)
        where.add("job_id IN {jobs:Array(String)}", jobs=list(job_ids)[:MAX_RUNS])
        where.parameters |= parameters(self._prices)
        rows = self._rows(
            f"SELECT {_RUN_COLUMNS} FROM gangline.run_list AS r {where.sql}", where.parameters
        )
        found = {each.run.run_id: each for each in self._with_tags(rows)}
        return [found[job] for job in dict.fromkeys(job_ids) if job in found]

    def _with_tags(self, rows: Sequence[dict[str, Any]]) -> list[HistoryRun]:
        """The runs of these rows, with the tags that users set."""
        if not rows:
            return []
        found = self._rows(
            "SELECT job_id, team, name, value FROM gangline.run_tags FINAL "
            "WHERE job_id IN {jobs:Array(String)} AND NOT removed ORDER BY job_id, name "
            "LIMIT {most:UInt32} BY job_id, team",
            {"jobs": [row["run_id"] for row in rows], "most": MAX_TAGS},
        )
        tags: dict[tuple[str, str], dict[str, str]] = {}
        for tag in found:
            tags.setdefault((tag["job_id"], tag["team"]), {})[tag["name"]] = tag["value"]
        return [
            _history_run({**row, "tags": tags.get((row["run_id"], row["team"]), {})})
            for row in rows
        ]

    def logs(
        self,
        wanted: LogFilter,
        *,
        limit: int = 200,
        cursor: str | None = None,
        tail: bool = False,
    ) -> LogPage:
        """Lines after `cursor`; with `tail` the last ones before it. Raises CursorError."""
        size = max(1, min(limit, MAX_PAGE))
        return log_page(self._rows, wanted, size=size, cursor=cursor, tail=tail)

    def last_lines(
        self, job: tuple[str, str], attempt: int, ranks: tuple[int, int]
    ) -> dict[int, LogLine]:
        """By rank: the last line of an attempt of a job (id and team), for a range of ranks."""
        return last_lines(self._rows, job, attempt, ranks)

    def checkpoints(self, job_id: str) -> list[Checkpoint]:
        """A job's checkpoints, newest first."""
        rows = self._rows(
            "SELECT attempt, step, status, time AS committed_at, world_size, size_bytes, write_s, "
            "blocked_s, verify_s, reason FROM gangline.checkpoint_list "
            "WHERE job_id = {job:String} ORDER BY step DESC, attempt DESC",
            {"job": job_id},
        )
        return [Checkpoint(**row) for row in rows]

    def announced(self, team: str, snapshot: str) -> dict[str, Any]:
        """The newest announcement of a snapshot of a team; {} if there is none."""
        rows = self._rows(
            "SELECT data FROM gangline.events WHERE subject = {team:String} "
            "AND type = 'snapshot.announced' AND team = {team:String} "
            "AND JSONExtractString(data, 'snapshot') = {snapshot:String} "
            "ORDER BY offset DESC LIMIT 1",
            {"team": team, "snapshot": snapshot},
        )
        return dict(json.loads(rows[0]["data"])) if rows else {}


def page_size(limit: int) -> int:
    """The runs of a page."""
    return max(1, min(limit, MAX_PAGE))


def _history_run(row: dict[str, Any]) -> HistoryRun:
    return HistoryRun(Run(**{name: row[name] for name in Run.model_fields}), row["spec"])
