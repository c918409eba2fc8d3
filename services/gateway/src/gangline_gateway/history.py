"""Reads history from ClickHouse: runs, curves, comparison, logs, checkpoints.

Queries use a service token and see the rows of all teams, so a route passes its user's teams as
`teams` (None: all). A client belongs to one thread. Errors of the client
(clickhouse_connect.driver.exceptions) are not caught here.
"""

# ruff: noqa: S608 - SQL is built from constants; values are query parameters.
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from math import isfinite
from typing import Any

from clickhouse_connect.driver.client import Client

from gangline_gateway.log_pages import LogFilter, log_page
from gangline_gateway.sql_parts import Where, cursor_of, fetch, ms, number, read_cursor
from gangline_schemas.api.checkpoints import Checkpoint
from gangline_schemas.api.logs import LogPage
from gangline_schemas.api.runs import Curve, Final, Point, Run, RunPage

MAX_PAGE = 1000
MAX_POINTS = 5000
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


_RUN_COLUMNS = ", ".join(
    "job_id AS run_id" if name == "run_id" else name for name in (*Run.model_fields, "spec")
)


class History:
    """Queries about runs. Each method sends one or two."""

    def __init__(self, client: Client) -> None:
        self._rows = partial(fetch, client)

    def runs(
        self, wanted: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> RunPage:
        """A page of runs, newest first. Raises CursorError."""
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
        if cursor is not None:
            after_ms, after_job = read_cursor(cursor, 2)
            where.add(
                "(submitted_at, job_id) < "
                "(fromUnixTimestamp64Milli({after_ms:Int64}), {after_job:String})",
                after_ms=number(after_ms),
                after_job=after_job,
            )
        size = max(1, min(limit, MAX_PAGE))
        rows = self._rows(
            f"SELECT {_RUN_COLUMNS} FROM gangline.run_list {where.sql} "
            f"ORDER BY submitted_at DESC, job_id DESC LIMIT {size + 1}",
            where.parameters,
        )
        runs = [_history_run(row).run for row in rows[:size]]
        last = runs[-1] if len(rows) > size else None
        after = cursor_of(ms(last.submitted_at), last.run_id) if last is not None else None
        return RunPage(runs=runs, cursor=after)

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
        rows = self._rows(
            f"SELECT {_RUN_COLUMNS} FROM gangline.run_list {where.sql}", where.parameters
        )
        found = {row["run_id"]: _history_run(row) for row in rows}
        return [found[job] for job in dict.fromkeys(job_ids) if job in found]

    def metric_names(self, runs: Mapping[str, str]) -> list[str]:
        """Names of metrics that any of the runs (team by id) reported, sorted."""
        where = Where()
        where.runs(runs)
        rows = self._rows(
            f"SELECT DISTINCT name FROM gangline.steps {where.sql} ORDER BY name",
            where.parameters,
        )
        return [row["name"] for row in rows]

    def curves(
        self,
        runs: Mapping[str, str],
        names: Sequence[str],
        *,
        points: int = 500,
        first_step: int = 0,
        last_step: int | None = None,
    ) -> list[Curve]:
        """Curves of at most about `points` points, each point over the same number of steps.

        `runs`: team by run id; rows of other teams are ignored. If a step ran again, the newest
        attempt counts. Values that are not finite are left out.
        """
        where = Where()
        where.runs(runs)
        where.add("name IN {names:Array(String)}", names=list(names))
        where.add("step >= {first:UInt64}", first=max(0, first_step))
        if last_step is not None:
            where.add("step <= {last:UInt64}", last=max(0, last_step))
        bounds = self._rows(
            f"SELECT min(step) AS low, max(step) AS high, count() AS found "
            f"FROM gangline.steps {where.sql}",
            where.parameters,
        )[0]
        if not bounds["found"]:
            return []
        steps = bounds["high"] - bounds["low"] + 1
        width = -(-steps // max(1, min(points, MAX_POINTS)))
        rows = self._rows(
            "SELECT run_id, name, min(c.step) AS first_step, max(c.step) AS last_step, "
            "max(c.time) AS last_time, avg(c.value) AS mean, min(c.value) AS low, "
            "max(c.value) AS high, argMax(c.value, c.step) AS last "
            f"FROM gangline.run_curves AS c {where.sql} "
            f"GROUP BY run_id, name, intDiv(c.step, {width}) ORDER BY run_id, name, last_step",
            where.parameters,
        )
        curves: dict[tuple[str, str], list[Point]] = {}
        last: dict[tuple[str, str], float] = {}
        for row in rows:
            key = (row["run_id"], row["name"])
            points_of = curves.setdefault(key, [])
            last[key] = row["last"]
            if _finite(row["mean"], row["low"], row["high"]):
                points_of.append(
                    Point(
                        first_step=row["first_step"],
                        step=row["last_step"],
                        time=row["last_time"],
                        value=row["mean"],
                        low=row["low"],
                        high=row["high"],
                    )
                )
        return [
            Curve(run_id=run, name=name, points=found, last=end if _finite(end) else None)
            for (run, name), found in curves.items()
            for end in (last[run, name],)
        ]

    def final_metrics(self, runs: Mapping[str, str]) -> dict[str, dict[str, Final]]:
        """Each finite metric at its last step, by name, then by run; `runs`: team by run id."""
        where = Where()
        where.runs(runs)
        rows = self._rows(
            "SELECT run_id, name, max(c.step) AS step, argMax(c.value, c.step) AS value, "
            "min(c.value) AS low, max(c.value) AS high FROM gangline.run_curves AS c "
            f"{where.sql} GROUP BY run_id, name ORDER BY run_id, name",
            where.parameters,
        )
        found: dict[str, dict[str, Final]] = {}
        for row in rows:
            by_run, run_id = found.setdefault(row.pop("name"), {}), row.pop("run_id")
            if _finite(row["value"], row["low"], row["high"]):
                by_run[run_id] = Final(**row)
        return found

    def logs(
        self,
        wanted: LogFilter,
        *,
        limit: int = 200,
        cursor: str | None = None,
        tail: bool = False,
    ) -> LogPage:
        """Lines after `cursor`; with `tail` the last ones instead. Raises CursorError."""
        size = max(1, min(limit, MAX_PAGE))
        return log_page(self._rows, wanted, size=size, cursor=cursor, tail=tail)

    def checkpoints(self, job_id: str) -> list[Checkpoint]:
        """A job's checkpoints, newest first."""
        rows = self._rows(
            "SELECT attempt, step, status, time AS committed_at, world_size, size_bytes, write_s, "
            "blocked_s, verify_s, reason FROM gangline.checkpoint_list "
            "WHERE job_id = {job:String} ORDER BY step DESC, attempt DESC",
            {"job": job_id},
        )
        return [Checkpoint(**row) for row in rows]


def _history_run(row: dict[str, Any]) -> HistoryRun:
    spec = row.pop("spec")
    return HistoryRun(Run(**row), spec)


def _finite(*values: float) -> bool:
    """JSON has no NaN and no infinity."""
    return all(map(isfinite, values))
