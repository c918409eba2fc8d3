"""What happened, from ClickHouse: runs, curves, comparison, logs, checkpoints, node samples.

Queries go over the ClickHouse HTTP port with a service token and see every team's rows: whoever
answers a user passes that user's teams as `teams` (None: all). A client belongs to one thread.
Errors of the client (clickhouse_connect.driver.exceptions) are not caught here.
"""

# ruff: noqa: S608 - the texts are built from constants; values are query parameters.
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from clickhouse_connect.driver.client import Client

from gangline_gateway.log_pages import LogFilter, LogPage, log_page
from gangline_gateway.sql_parts import Where, aware, cursor_of, ms, number, read_cursor

MAX_PAGE = 1000
MAX_POINTS = 5000
MAX_RUNS = 100


@dataclass(frozen=True, slots=True)
class RunRow:
    """One job as lists show it. `gpu_seconds` counts attempts that have ended."""

    job_id: str
    team: str
    project: str
    name: str
    user: str
    state: str
    reason: str
    attempt: int
    restarts: int
    gpus: int
    priority: int
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    gpu_seconds: float
    strategy: str
    code_ref: str
    data_snapshot: str
    hyperparameters: dict[str, str]
    spec: str
    """The spec as JSON, without code_diff."""


@dataclass(frozen=True, slots=True)
class RunPage:
    """Runs, newest first. `cursor` continues after the last one; None: there are no more."""

    runs: list[RunRow]
    cursor: str | None


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


@dataclass(frozen=True, slots=True)
class Point:
    """The steps `first_step .. step` of a curve: mean, lowest and highest value."""

    first_step: int
    step: int
    time: datetime
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one run; of a step that was run again the newest attempt counts.

    `last` is the value of the last step: that of the last point is the mean of all its steps.
    """

    run_id: str
    name: str
    points: list[Point]
    last: float


@dataclass(frozen=True, slots=True)
class FinalMetric:
    """The value at a metric's last step, and its extremes."""

    run_id: str
    name: str
    step: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One checkpoint in its newest status: committed, corrupted, deleted or abandoned."""

    job_id: str
    attempt: int
    step: int
    status: str
    time: datetime
    world_size: int
    size_bytes: int
    write_s: float
    blocked_s: float
    verify_s: float
    commit_key: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeSample:
    """One GPU (None: the node has none to report) of one node at one time."""

    node_id: str
    time: datetime
    cpu_percent: float | None
    memory_used_gb: float | None
    gpu: int | None
    utilization: float | None
    gpu_memory_gb: float | None
    temperature_c: float | None


_RUN_COLUMNS = ", ".join(RunRow.__dataclass_fields__)
_CHECKPOINT_COLUMNS = ", ".join(CheckpointRow.__dataclass_fields__)
_SAMPLE_COLUMNS = ", ".join(NodeSample.__dataclass_fields__)


class History:
    """Questions about the past. Each method is one or two queries."""

    def __init__(self, client: Client) -> None:
        self._client = client

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
        runs = [RunRow(**row) for row in rows[:size]]
        more = len(rows) > size
        return RunPage(
            runs, cursor_of(ms(runs[-1].submitted_at), runs[-1].job_id) if more else None
        )

    def run(self, job_id: str, teams: frozenset[str] | None = None) -> RunRow | None:
        """One run; None when there is none, or none of these teams."""
        found = self.some_runs([job_id], teams)
        return found[0] if found else None

    def some_runs(
        self, job_ids: Sequence[str], teams: frozenset[str] | None = None
    ) -> list[RunRow]:
        """These runs as far as they exist, in the order asked for."""
        where = Where()
        where.teams(teams)
        where.add("job_id IN {jobs:Array(String)}", jobs=list(job_ids)[:MAX_RUNS])
        rows = self._rows(
            f"SELECT {_RUN_COLUMNS} FROM gangline.run_list {where.sql}", where.parameters
        )
        found = {row["job_id"]: RunRow(**row) for row in rows}
        return [found[job] for job in dict.fromkeys(job_ids) if job in found]

    def metric_names(self, runs: Mapping[str, str]) -> list[str]:
        """Names that any of the runs (their teams by id) has reported, sorted."""
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
        """Curves of at most about `points` points, all over the same widths of steps.

        `runs`: a run's team by its id; other teams' rows do not count.
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
            last[row["run_id"], row["name"]] = row["last"]
            curves.setdefault((row["run_id"], row["name"]), []).append(
                Point(
                    first_step=row["first_step"],
                    step=row["last_step"],
                    time=row["last_time"],
                    value=row["mean"],
                    low=row["low"],
                    high=row["high"],
                )
            )
        return [Curve(*key, found, last[key]) for key, found in curves.items()]

    def final_metrics(self, runs: Mapping[str, str]) -> list[FinalMetric]:
        """Each metric's value at its last step, by run and name; `runs`: their teams by id."""
        where = Where()
        where.runs(runs)
        rows = self._rows(
            "SELECT run_id, name, max(c.step) AS step, argMax(c.value, c.step) AS value, "
            "min(c.value) AS low, max(c.value) AS high FROM gangline.run_curves AS c "
            f"{where.sql} GROUP BY run_id, name ORDER BY run_id, name",
            where.parameters,
        )
        return [FinalMetric(**row) for row in rows]

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

    def checkpoints(self, job_id: str) -> list[CheckpointRow]:
        """A job's checkpoints, newest first."""
        rows = self._rows(
            f"SELECT {_CHECKPOINT_COLUMNS} FROM gangline.checkpoint_list "
            "WHERE job_id = {job:String} ORDER BY step DESC, attempt DESC",
            {"job": job_id},
        )
        return [CheckpointRow(**row) for row in rows]

    def node_samples(
        self, since: datetime, until: datetime, node_ids: Iterable[str] = ()
    ) -> list[NodeSample]:
        """Samples of nodes (all, if none is named) in order of time; at most 100,000."""
        where = Where()
        where.add("time >= {since:DateTime64(3)}", since=since)
        where.add("time < {until:DateTime64(3)}", until=until)
        where.among("node_id", tuple(node_ids))
        rows = self._rows(
            f"SELECT {_SAMPLE_COLUMNS} FROM gangline.node_samples {where.sql} "
            "ORDER BY time, node_id, gpu LIMIT 100000",
            where.parameters,
        )
        return [NodeSample(**row) for row in rows]

    def _rows(self, sql: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
        answer = self._client.query(sql, parameters=parameters)
        return [
            {name: aware(value) for name, value in row.items()} for row in answer.named_results()
        ]
