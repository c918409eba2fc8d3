"""Resources that runs used, by the system metrics of their nodes, and the cost over time."""

# ruff: noqa: S608 - SQL is built from constants; values are query parameters.
from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from clickhouse_connect.driver.client import Client

from gangline_gateway.sql_parts import Where, fetch, logged_id
from gangline_schemas.api.runs import ResourceCurve, ResourcePoint, Resources, Run
from gangline_schemas.gpu_prices import GpuPrices
from gangline_schemas.limits import LATEST
from gangline_schemas.system_metrics import PREFIX

_MEANS = {
    "gpu_utilization_percentage": "gpu_utilization",
    "gpu_sm_activity_percentage": "gpu_sm_activity",
    "gpu_memory_usage_percentage": "gpu_memory",
    "gpu_power_usage_watts": "gpu_power_w",
    "cpu_utilization_percentage": "cpu",
    "system_memory_usage_megabytes": "memory_mb",
}
"""Fields of the answers by the last part of a metric's name. They are means over nodes."""
_ROLL_UP_S = 1000
_TIMES = f"first >= 1000000000 AND last < {int(LATEST.timestamp())}"
"""Steps of a node agent's metrics are Unix times; MLflow's client counts, programs log anything.
No condition on single steps: roll-ups have none."""
_LAST = "splitByChar('/', toString(name))[-1]"


class ResourceReader:
    """Queries about what runs used. Belongs to one thread, as its client does."""

    def __init__(self, client: Client, prices: GpuPrices) -> None:
        self._rows = partial(fetch, client)
        self._prices = prices

    def used(self, runs: Mapping[str, str]) -> dict[str, Resources]:
        """Means over the nodes and the time of each run (team by id) that has such metrics."""
        where = _where(runs)
        rows = self._rows(
            f"SELECT run_id, {_LAST} AS kind, sum(total) / sum(found) AS mean, max(high) AS most "
            "FROM (SELECT run_id, name, is_nan, team, sum(value) AS total, count() AS found, "
            "max(value) AS high, min(step) AS first, max(step) AS last "
            f"FROM gangline.metric_points {where.sql} GROUP BY run_id, name, is_nan, team "
            f"HAVING {_TIMES}) GROUP BY run_id, kind",
            where.parameters,
        )
        jobs = {logged_id(run): run for run in runs}
        found: dict[str, dict[str, float]] = {}
        for row in rows:
            fields = found.setdefault(jobs[row["run_id"]], {})
            fields[_MEANS[row["kind"]]] = row["mean"]
            if row["kind"] == "system_memory_usage_megabytes":
                fields["memory_peak_mb"] = row["most"]
        return {run: Resources(**fields) for run, fields in found.items()}

    def over_time(self, runs: Sequence[Run], points: int) -> list[ResourceCurve]:
        """Resources that each run used over its time, in about so many points."""
        owners = {run.run_id: run.team for run in runs}
        where = _where(owners)
        spans = self._rows(
            "SELECT run_id, min(first) AS first, max(last) AS last FROM ("
            "SELECT run_id, name, is_nan, team, min(step) AS first, max(step) AS last "
            f"FROM gangline.metric_points {where.sql} GROUP BY run_id, name, is_nan, team "
            f"HAVING {_TIMES}) GROUP BY run_id",
            where.parameters,
        )
        if not spans:
            return []
        longest = max(row["last"] - row["first"] for row in spans) + 1
        width = max(1, -(-longest // points))
        base = min(_ROLL_UP_S, width)
        width = -(-width // base) * base
        where.add(
            f"intDiv(step, {base}) BETWEEN {{from:Int64}} AND {{until:Int64}}",
            **{"from": min(row["first"] for row in spans) // base},
            until=max(row["last"] for row in spans) // base,
        )
        rows = self._rows(
            f"SELECT run_id, intDiv(part, {width // base}) AS bucket, {_LAST} AS kind, "
            "sum(total) / sum(found) AS mean, max(last) AS until FROM ("
            f"SELECT run_id, name, intDiv(step, {base}) AS part, is_nan, team, "
            "sum(value) AS total, count() AS found, max(step) AS last "
            f"FROM gangline.metric_points {where.sql} "
            "GROUP BY run_id, name, part, is_nan, team) "
            "GROUP BY run_id, bucket, kind ORDER BY run_id, bucket",
            where.parameters,
        )
        charged = self._charged(owners)
        buckets: dict[str, dict[int, dict[str, Any]]] = {}
        for row in rows:
            bucket = buckets.setdefault(row["run_id"], {}).setdefault(row["bucket"], {"until": 0})
            bucket[_MEANS[row["kind"]]] = row["mean"]
            bucket["until"] = max(bucket["until"], row["until"])
        return [
            ResourceCurve(
                run_id=run.run_id,
                points=[
                    self._point(run, bucket, charged.get(run.run_id, []))
                    for bucket in buckets[logged_id(run.run_id)].values()
                ],
            )
            for run in runs
            if logged_id(run.run_id) in buckets
        ]

    def _charged(self, runs: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
        """The attempts of these runs that have ended."""
        rows = self._rows(
            "SELECT job_id, gpus, allocated_at, released_at FROM gangline.usage FINAL "
            "WHERE job_id IN {jobs:Array(String)}",
            {"jobs": list(runs)},
        )
        found: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            found.setdefault(row["job_id"], []).append(row)
        return found

    def _point(
        self, run: Run, bucket: dict[str, Any], charged: Sequence[dict[str, Any]]
    ) -> ResourcePoint:
        time = datetime.fromtimestamp(bucket.pop("until"), tz=UTC)
        hours = (
            sum(
                row["gpus"]
                * max(0.0, (min(time, row["released_at"]) - row["allocated_at"]).total_seconds())
                for row in charged
            )
            / 3600
        )
        price = self._prices.hour(run.gpu_model)
        return ResourcePoint(
            time=time,
            x=(time - (run.started_at or run.submitted_at)).total_seconds(),
            gpu_hours=hours,
            cost=None if price is None else hours * price,
            **bucket,
        )


def _where(runs: Mapping[str, str]) -> Where:
    where = Where()
    where.add(
        "run_id IN {logged:Array(String)} AND "
        "{owners:Array(String)}[indexOf({logged:Array(String)}, toString(run_id))] = team",
        logged=[logged_id(run) for run in runs],
        owners=list(runs.values()),
    )
    where.add(
        "is_nan = 0 AND startsWith(name, {system:String}) AND "
        f"{_LAST} IN {{kinds:Array(String)}}",
        system=PREFIX,
        kinds=list(_MEANS),
    )
    return where
