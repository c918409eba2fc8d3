"""Thousands of runs in tracking servers, and whether these answer searches alike."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from typing import Any

from tracking_servers import FASTTRACKML, Side
from tracking_work import FILTER, ORDER

NAMES = 10
_MLFLOW = {
    "runs": {"experiment_id": "?", "run_uuid": "?", "name": "?", "start_time": "?"}
    | {"source_type": "'UNKNOWN'", "source_name": "''", "entry_point_name": "''"}
    | {"source_version": "''", "user_id": "'ann'", "status": "'RUNNING'"}
    | {"lifecycle_stage": "'active'", "artifact_uri": "'mlflow-artifacts:/x'"},
    "tags": {"run_uuid": "?", "value": "?", "key": "'mlflow.runName'"},
    "params": {"run_uuid": "?", "key": "?", "value": "?"},
    "latest_metrics": {"run_uuid": "?", "key": "?", "value": "?"}
    | {"timestamp": "1", "step": "1", "is_nan": "0"},
}
_FASTTRACKML = {
    "runs": _MLFLOW["runs"] | {"row_num": "?4"},
    "tags": _MLFLOW["tags"],
    "params": {"run_uuid": "?", "key": "?", "value_str": "?"},
    "latest_metrics": _MLFLOW["latest_metrics"] | {"last_iter": "1", "context_id": "1"},
}
SEARCHES: tuple[tuple[str, list[str]], ...] = (
    (FILTER, ORDER),
    ("metrics.m3 <= 0.05", ["metrics.m3 ASC", "params.p2 DESC"]),
    ("params.p4 = '7' and metrics.m9 >= 0.9", ["attributes.start_time ASC"]),
    ("params.p0 LIKE '%1' and tags.`mlflow.runName` LIKE 'run-12%'", ["metrics.m5"]),
    ("metrics.absent > 0", []),
    ("", ["metrics.absent DESC", "params.p1"]),
)


def add_runs(side: Side, count: int, first: int = 0) -> None:
    """Runs with ten metrics and ten parameters each, straight into the server's database."""
    tables = _FASTTRACKML if side.name == FASTTRACKML else _MLFLOW
    insert = {
        table: f"INSERT INTO {table} ({', '.join(given)}) VALUES ({', '.join(given.values())})"
        for table, given in tables.items()
    }
    with closing(sqlite3.connect(side.database, timeout=60)) as database, database:
        for number in range(first, first + count):
            run_id = hashlib.sha256(str(number).encode()).hexdigest()[:32]
            name, keys = f"run-{number}", range(NAMES)
            params = [(run_id, f"p{k}", str((number + k) % 10)) for k in keys]
            metrics = [(run_id, f"m{k}", (number * 7919 + k * 31) % 1000 / 1000) for k in keys]
            database.execute(insert["runs"], (int(side.many), run_id, name, number + 1))
            database.execute(insert["tags"], (run_id, name))
            database.executemany(insert["params"], params)
            database.executemany(insert["latest_metrics"], metrics)


def differences(one: Side, other: Side) -> int:
    """Searches that two servers with the same runs answer differently."""
    return sum(_found(one, *asked) != _found(other, *asked) for asked in SEARCHES)


def _found(side: Side, where: str, order: list[str]) -> list[dict[str, Any]]:
    runs = side.client.search_runs([side.many], where, max_results=200, order_by=order)
    return [run.to_dictionary() for run in runs]
