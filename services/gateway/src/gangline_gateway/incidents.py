"""Reads incidents from ClickHouse: pages, totals of their cost, stacks and notices.

As in history.py, a route passes its user's teams, and a client belongs to one thread.
"""

# ruff: noqa: S608 - SQL is built from constants; values are query parameters.
from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from clickhouse_connect.driver.client import Client

from gangline_gateway.sql_parts import Where, cursor_of, fetch, ms, number, read_cursor
from gangline_schemas.api.incidents import Incident, Notice, Share, Stacks, Totals
from gangline_schemas.events.workers import WorkerStacks

MAX_PAGE = 200
MAX_SHARES = 20
MAX_NOTICES = 20


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """Which incidents; an empty field accepts all."""

    teams: frozenset[str] | None = None
    job_id: str = ""
    node_id: str = ""
    classes: tuple[str, ...] = ()
    since: datetime | None = None

    def where(self) -> Where:
        """Conditions for rows of `incident_list`."""
        where = Where()
        where.teams(self.teams)
        where.among("failure_class", self.classes)
        if self.job_id:
            where.add("job_id = {job:String}", job=self.job_id)
        if self.node_id:
            where.add("node_id = {node:String}", node=self.node_id)
        if self.since is not None:
            where.add("failed_at >= {since:DateTime64(3)}", since=self.since)
        return where

    def where_noticed(self) -> Where:
        """Conditions for notices in `events`; a notice has no class."""
        where = Where()
        where.add("type IN ('worker.straggling', 'gang.troubled')")
        where.teams(self.teams)
        self.narrow_events(where)
        return where

    def narrow_events(self, where: Where) -> None:
        """Adds the conditions for rows of `events`, except teams and classes."""
        if self.job_id:
            where.add("subject = {job:String}", job=self.job_id)
        if self.node_id:
            where.add("JSONExtractString(data, 'node_id') = {node:String}", node=self.node_id)
        if self.since is not None:
            where.add("time >= {since:DateTime64(3)}", since=self.since)


_COLUMNS = ", ".join(Incident.model_fields)


class Incidents:
    """Queries about failures."""

    def __init__(self, client: Client) -> None:
        self._rows = partial(fetch, client)

    def page(
        self, wanted: IncidentFilter, *, limit: int = 50, cursor: str | None = None
    ) -> tuple[list[Incident], str | None]:
        """A page, newest first, and the cursor after it (None: no more). Raises CursorError."""
        where = wanted.where()
        if cursor is not None:
            after_ms, after_job, after_attempt = read_cursor(cursor, 3)
            where.add(
                "(failed_at, job_id, attempt) < (fromUnixTimestamp64Milli({after_ms:Int64}), "
                "{after_job:String}, {after_attempt:UInt32})",
                after_ms=number(after_ms),
                after_job=after_job,
                after_attempt=number(after_attempt),
            )
        size = max(1, min(limit, MAX_PAGE))
        rows = self._rows(
            f"SELECT {_COLUMNS} FROM gangline.incident_list {where.sql} "
            f"ORDER BY failed_at DESC, job_id DESC, attempt DESC LIMIT {size + 1}",
            where.parameters,
        )
        found = [Incident(**row) for row in rows[:size]]
        last = found[-1] if len(rows) > size else None
        return found, cursor_of(ms(last.failed_at), last.job_id, last.attempt) if last else None

    def totals(self, wanted: IncidentFilter, *, shares: bool = True) -> Totals:
        """Totals of all incidents that the filter accepts, with the largest shares first.

        Not `shares`: the sums alone, in one query of five.
        """
        where = wanted.where()
        (row,) = self._rows(
            "SELECT count() AS incidents, countIf(recover_s IS NOT NULL) AS recovered, "
            "quantileExactIf(0.5)(ifNull(recover_s, 0), recover_s IS NOT NULL) AS median, "
            "quantileExactIf(0.95)(ifNull(recover_s, 0), recover_s IS NOT NULL) AS p95, "
            f"sum(lost_gpu_s) AS lost FROM gangline.incident_list {where.sql}",
            where.parameters,
        )
        some = row["recovered"] > 0
        return Totals(
            incidents=row["incidents"],
            recovered=row["recovered"],
            recover_median_s=row["median"] if some else None,
            recover_p95_s=row["p95"] if some else None,
            lost_gpu_s=row["lost"],
            by_class=self._shares("failure_class", wanted.where()) if shares else [],
            by_node=self._shares("node_id", wanted.where()) if shares else [],
            by_job=self._shares("job_id", wanted.where()) if shares else [],
            by_shard=self._blocks(wanted) if shares else [],
        )

    def one(self, job_id: str, attempt: int, teams: frozenset[str] | None) -> Incident | None:
        """The failure of an attempt; None if there is none or it is another team's."""
        where = IncidentFilter(teams=teams, job_id=job_id).where()
        where.add("attempt = {attempt:UInt32}", attempt=attempt)
        rows = self._rows(
            f"SELECT {_COLUMNS} FROM gangline.incident_list {where.sql}", where.parameters
        )
        return Incident(**rows[0]) if rows else None

    def stacks(self, job_id: str, attempt: int) -> list[Stacks]:
        """The ranks' stacks of an attempt that hung, by rank."""
        rows = self._rows(
            "SELECT data FROM gangline.events WHERE subject = {job:String} "
            "AND type = 'worker.stacks' "
            "AND JSONExtractUInt(data, 'attempt') = {attempt:UInt32}",
            {"job": job_id, "attempt": attempt},
        )
        found = [
            Stacks.model_validate(WorkerStacks.decode(row["data"]), from_attributes=True)
            for row in rows
        ]
        return sorted(found, key=lambda one: one.rank)

    def notices(self, wanted: IncidentFilter) -> list[Notice]:
        """The newest notices that the filter accepts; none if it names classes."""
        if wanted.classes:
            return []
        where = wanted.where_noticed()
        rows = self._rows(
            "SELECT team, subject, type, data, time FROM gangline.events "
            f"{where.sql} ORDER BY time DESC, subject, offset LIMIT {MAX_NOTICES}",
            where.parameters,
        )
        return [_notice(row) for row in rows]

    def _shares(self, column: str, where: Where) -> list[Share]:
        where.add(f"{column} != ''")
        rows = self._rows(
            f"SELECT {column} AS name, count() AS incidents, sum(lost_gpu_s) AS lost_gpu_s "
            f"FROM gangline.incident_list {where.sql} GROUP BY name "
            f"ORDER BY incidents DESC, name LIMIT {MAX_SHARES}",
            where.parameters,
        )
        return [Share(**row) for row in rows]

    def _blocks(self, wanted: IncidentFilter) -> list[Share]:
        where = Where()
        where.add("type = 'job.flagged'")
        if wanted.teams is not None:  # the event has no team; its job has
            where.add(
                "subject IN (SELECT job_id FROM gangline.runs WHERE team IN {teams:Array(String)})",
                teams=sorted(wanted.teams),
            )
        wanted.narrow_events(where)
        rows = self._rows(
            "SELECT concat(JSONExtractString(data, 'snapshot'), '/', "
            "JSONExtractString(data, 'shard')) AS name, count() AS incidents, 0.0 AS lost_gpu_s "
            f"FROM gangline.events {where.sql} GROUP BY name "
            f"ORDER BY incidents DESC, name LIMIT {MAX_SHARES}",
            where.parameters,
        )
        return [Share(**row) for row in rows]


def _notice(row: dict[str, Any]) -> Notice:
    event = json.loads(row["data"])
    return Notice(
        team=row["team"],
        job_id=row["subject"],
        attempt=event["attempt"],
        kind=event.get("kind", "straggling"),
        rank=event["rank"],
        node_id=event["node_id"],
        message=event["message"],
        noted_at=row["time"],
    )
