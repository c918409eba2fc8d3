"""A period's facts from ClickHouse, in seven queries.

1. Jobs of the period: one row each of `run_list`, which is small.
2. Their gangs: one row per attempt, from the events of those jobs (`events` is ordered by subject).
3. and 4. Nodes at the start, and their changes.
5. Teams.
6. The metric mfu of those jobs.
7. GPU utilization, from about 3,600 heartbeats of each node, for any length of the period.

The rows are bounded by the jobs of the period; more than MAX_JOBS or MAX_GANGS raise TooMuchError.
"""

# ruff: noqa: S608 - SQL is built from constants; values are query parameters.
from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Any

from clickhouse_connect.driver.client import Client

from gangline_gateway.reports.facts import (
    Facts,
    Gang,
    GpuUse,
    Job,
    NodeChange,
    Period,
    Quota,
    RunMfu,
)
from gangline_gateway.sql_parts import fetch
from gangline_schemas.gpu_prices import GpuPrices

MAX_JOBS = 100_000
MAX_GANGS = 300_000
MAX_NODE_CHANGES = 200_000
MAX_TEAMS = 10_000
SAMPLES = 3600
"""Heartbeats that count of a node that sends one a second, at most."""

_SINCE, _UNTIL = "{since:DateTime64(3)}", "{until:DateTime64(3)}"
_PRESENT = (
    f"state != 'rejected' AND submitted_at < {_UNTIL} "
    f"AND (ended_at IS NULL OR ended_at >= {_SINCE})"
)
_JOBS = (
    "SELECT job_id, team, name, JSONExtractUInt(spec, 'resources', 'gpus') AS asked, priority, "
    f"state, submitted_at, ended_at, gpu_model FROM gangline.run_list WHERE {_PRESENT} "
    f"ORDER BY job_id LIMIT {MAX_JOBS + 1}"
)
_OF_JOBS = f"(SELECT job_id FROM gangline.run_list WHERE {_PRESENT})"
# Of a gang without GPUs the world size is its nodes, with so many CPUs of each.
_GANG_GPUS = (
    "if(JSONExtractUInt(data, 'spec', 'resources', 'gpus') = 0, 0, "
    "JSONExtractUInt(data, 'world_size'))"
)
_GANG_CPUS = (
    "JSONExtractFloat(data, 'spec', 'resources', 'cpus') * JSONExtractUInt(data, 'world_size')"
)
_GANGS = (
    "SELECT subject AS job_id, if(type = 'checkpoint.committed', "
    "JSONExtractUInt(data, 'checkpoint', 'attempt'), JSONExtractUInt(data, 'attempt')) AS attempt, "
    f"maxIf({_GANG_GPUS}, type = 'gang.allocated') AS gpus, "
    f"maxIf({_GANG_CPUS}, type = 'gang.allocated') AS cpus, "
    "minIfOrNull(e.time, type = 'gang.allocated') AS allocated_at, "
    "minIfOrNull(e.time, type = 'job.state.changed' "
    "AND JSONExtractString(data, 'state') = 'running') AS running_at, "
    "minIfOrNull(e.time, type = 'gang.released') AS released_at, "
    "minIfOrNull(e.time, type = 'gang.stopping' "
    "AND JSONExtractString(data, 'reason') = 'preempted') AS preempted_at, "
    "minIfOrNull(e.time, type = 'gang.failed' "
    "AND JSONExtractString(data, 'cause') != 'preemption') AS failed_at, "
    "maxIfOrNull(e.time, type = 'checkpoint.committed') AS saved_at "
    "FROM gangline.events AS e WHERE type IN ('gang.allocated', 'gang.released', "
    "'gang.stopping', 'gang.failed', 'job.state.changed', 'checkpoint.committed') "
    f"AND e.time < {_UNTIL} AND subject IN {_OF_JOBS} "
    "GROUP BY job_id, attempt HAVING allocated_at IS NOT NULL "
    f"ORDER BY job_id, attempt LIMIT {MAX_GANGS + 1}"
)
# A drained or outdated node is up, and its gangs continue.
_NODES_CHANGED = (
    "FROM gangline.events AS e WHERE topic = 'gangline.scheduling' AND (type = 'node.admitted' "
    "OR (type = 'node.cordoned' "
    "AND JSONExtractString(data, 'reason') NOT IN ('drain', 'outdated'))) "
)
_GPUS_UP = "if(type = 'node.admitted', JSONLength(data, 'node', 'gpus'), 0)"
_NODES_BEFORE = (
    f"SELECT subject AS node_id, argMax({_GPUS_UP}, (e.time, offset)) AS gpus, "
    f"max(e.time) AS changed_at {_NODES_CHANGED} AND e.time < {_SINCE} "
    f"GROUP BY node_id ORDER BY node_id LIMIT {MAX_NODE_CHANGES + 1}"
)
_NODES_WITHIN = (
    f"SELECT subject AS node_id, {_GPUS_UP} AS gpus, e.time AS changed_at {_NODES_CHANGED} "
    f"AND e.time >= {_SINCE} AND e.time < {_UNTIL} "
    f"ORDER BY changed_at, offset LIMIT {MAX_NODE_CHANGES + 1}"
)
_QUOTAS = (
    "SELECT subject AS team_name, argMax(data, (e.time, offset)) AS newest, "
    "JSONExtractUInt(newest, 'config', 'gpu_limit') AS gpu_limit, "
    "JSONExtractUInt(newest, 'config', 'gpu_guarantee') AS gpu_guarantee, "
    "JSONExtractUInt(newest, 'config', 'borrow_limit') AS borrow_limit, "
    "JSONExtractString(newest, 'config', 'parent') AS parent "
    f"FROM gangline.events AS e WHERE type = 'team.configured' AND e.time < {_UNTIL} "
    f"GROUP BY team_name ORDER BY team_name LIMIT {MAX_TEAMS + 1}"
)
# Steps are ingested after their time, so older partitions are not read. A program may report any
# number: only 0 to 1 can be an MFU.
_MFU = (
    "SELECT run_id, any(s.team) AS team_name, avg(value) AS mean, count() AS found "
    "FROM gangline.steps AS s WHERE name = 'mfu' AND value >= 0 AND value <= 1 "
    f"AND s.time >= {_SINCE} AND s.time < {_UNTIL} "
    f"AND ingested >= toDateTime({_SINCE}) - INTERVAL 1 DAY AND run_id IN {_OF_JOBS} "
    f"GROUP BY run_id ORDER BY run_id LIMIT {MAX_JOBS + 1}"
)
_BEATS = (
    f"h.time >= {_SINCE} AND h.time < {_UNTIL} AND sequence % {{every:UInt32}} = 0 "
    f"AND ingested >= toDateTime({_SINCE}) - INTERVAL 1 DAY"
)
_BUSY = (
    "SELECT sum(arraySum(arrayMap(u -> ifNull(u, 0), gpu_utilization))) AS total, "
    "sum(arrayCount(u -> isNotNull(u), gpu_utilization)) AS found "
    f"FROM gangline.heartbeats AS h WHERE {_BEATS}"
)
_PLACES = (
    "SELECT p.team AS holder, p.allocated_at AS since, "
    "ifNull(r.released_at, toDateTime64('2200-01-01 00:00:00', 3, 'UTC')) AS until, "
    "JSONExtractString(p.place, 'node_id') AS node, "
    "JSONExtract(p.place, 'gpus', 'Array(UInt32)') AS allocated FROM ("
    "SELECT subject, e.team AS team, e.time AS allocated_at, "
    "JSONExtractUInt(data, 'attempt') AS attempt, "
    "arrayJoin(JSONExtractArrayRaw(data, 'nodes')) AS place FROM gangline.events AS e "
    f"WHERE type = 'gang.allocated' AND e.time < {_UNTIL} AND subject IN {_OF_JOBS}) AS p "
    "LEFT JOIN (SELECT subject, JSONExtractUInt(data, 'attempt') AS attempt, "
    "toNullable(e.time) AS released_at FROM gangline.events AS e WHERE type = 'gang.released' "
    f"AND subject IN {_OF_JOBS}) AS r ON p.subject = r.subject AND p.attempt = r.attempt "
    f"WHERE r.released_at IS NULL OR r.released_at >= {_SINCE}"
)
_BUSY_BY_TEAM = (
    "SELECT holder, sum(arraySum(busy)) AS total, sum(length(busy)) AS found FROM ("
    "SELECT g.holder AS holder, arrayMap(v -> assumeNotNull(v), arrayFilter((u, i) -> "
    "isNotNull(u) AND has(g.allocated, i), h.gpu_utilization, h.gpu_index)) AS busy "
    f"FROM gangline.heartbeats AS h INNER JOIN ({_PLACES}) AS g ON h.node_id = g.node "
    f"WHERE {_BEATS} AND h.time >= g.since AND h.time < g.until) "
    f"GROUP BY holder ORDER BY holder LIMIT {MAX_TEAMS + 1}"
)
_PERCENT = 100.0


class TooMuchError(ValueError):
    """The period has more rows than a report reads. The message says which, and what to do."""


class Reports:
    """Reads facts. A client belongs to one thread; its errors are not caught here."""

    def __init__(self, client: Client, prices: GpuPrices | None = None) -> None:
        self._client = client
        self._prices = prices or GpuPrices()

    def facts(self, period: Period, *, gpu_use: bool = True) -> Facts:
        """All facts of the period, of all teams; `gpu_use`: with that of each team.

        Raises TooMuchError.
        """
        gangs: dict[str, list[Gang]] = defaultdict(list)
        for row in self._rows(_GANGS, period, "gangs", MAX_GANGS):
            gangs[row.pop("job_id")].append(Gang(**row))
        jobs = [
            _job(row, gangs.get(row["job_id"], []), period.until, self._prices)
            for row in self._rows(_JOBS, period, "jobs", MAX_JOBS)
        ]
        nodes = self._rows(_NODES_BEFORE, period, "nodes", MAX_NODE_CHANGES)
        nodes += self._rows(_NODES_WITHIN, period, "changes of nodes", MAX_NODE_CHANGES)
        busy = self._rows(_BUSY, period, "nodes", 1)
        uses = self._rows(_BUSY_BY_TEAM, period, "teams", MAX_TEAMS) if gpu_use else []
        return Facts(
            period=period,
            jobs=tuple(jobs),
            nodes=tuple(NodeChange(n["node_id"], n["changed_at"], n["gpus"]) for n in nodes),
            quotas=tuple(_quota(row) for row in self._rows(_QUOTAS, period, "teams", MAX_TEAMS)),
            mfu=tuple(
                RunMfu(row["run_id"], row["team_name"], row["mean"], row["found"])
                for row in self._rows(_MFU, period, "runs", MAX_JOBS)
            ),
            gpu_use=tuple(
                GpuUse(row["holder"], share, row["found"])
                for row in uses
                if (share := _share(row)) is not None
            ),
            busy_share=_share(busy[0]) if busy else None,
        )

    def _rows(self, sql: str, period: Period, what: str, limit: int) -> list[dict[str, Any]]:
        parameters = {
            "since": period.since,
            "until": period.until,
            "every": max(1, round(period.length_s) // SAMPLES),
        }
        rows = fetch(self._client, sql, parameters)
        if len(rows) > limit:
            raise TooMuchError(f"there are more than {limit:,} {what}: ask for a shorter period")
        return rows


def _job(row: dict[str, Any], gangs: list[Gang], until: datetime, prices: GpuPrices) -> Job:
    """The job as it was at the end of the period."""
    ended_at = row["ended_at"]
    if ended_at is not None and ended_at >= until:
        ended_at = None
    return Job(
        job_id=row["job_id"],
        team=row["team"],
        name=row["name"],
        gpus=row["asked"],
        priority=row["priority"],
        state=row["state"] if ended_at is not None else "",
        submitted_at=row["submitted_at"],
        ended_at=ended_at,
        gangs=tuple(gangs),
        gpu_hour=prices.hour(row["gpu_model"]),
    )


def _quota(row: dict[str, Any]) -> Quota:
    return Quota(
        team=row["team_name"],
        gpu_limit=row["gpu_limit"],
        gpu_guarantee=row["gpu_guarantee"],
        borrow_limit=row["borrow_limit"],
        parent=row["parent"] or None,
    )


def _share(row: dict[str, Any]) -> float | None:
    return row["total"] / row["found"] / _PERCENT if row["found"] else None
