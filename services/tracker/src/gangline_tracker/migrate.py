"""Brings the database up to date: statements, on one server or on a replicated cluster.

1. On a server: take the lock, a table that only one process can create. A lock of a process that
   was killed is taken over after `STALE_S`.
2. Run all statements; each may run again, so this happens at every start.
3. Let old parts of tables have the roll-ups that were added since: the engine does it in the
   background, once for each part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from gangline_tracker.engine import EngineUnavailable

LOCK = "gangline.migration_lock"
"""The table that is the lock."""
STALE_S = 600
TRIES = 900
"""Seconds that a process waits for the lock."""
_TABLE_EXISTS = "57"
"""ClickHouse's code of TABLE_ALREADY_EXISTS."""
_PLACE = "'/clickhouse/tables/{shard}/{database}/{table}', '{replica}'"
"""The path in Keeper and the replica's name, by macros that each server defines."""
_NAMED = re.compile(
    r"^(CREATE DATABASE IF NOT EXISTS \w+"
    r"|CREATE TABLE IF NOT EXISTS [\w.]+"
    r"|CREATE OR REPLACE VIEW [\w.]+"
    r"|ALTER TABLE [\w.]+)"
)
_ENGINE = re.compile(r"^ENGINE = (\w*MergeTree)(?:\((.*)\))?$", re.MULTILINE)


def statements(cluster: str | None = None) -> list[str]:
    """All statements in order; with a cluster's name, for replicated tables on all its servers."""
    folder = resources.files("gangline_tracker") / "migrations"
    found = [
        statement
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        for statement in _split(file.read_text(encoding="utf-8"))
    ]
    return found if cluster is None else [replicated(each, cluster) for each in found]


def replicated(statement: str, cluster: str) -> str:
    """The statement for all servers of a cluster, with the replicated form of its engine."""
    named = _NAMED.match(statement)
    if named is None:
        raise ValueError(f"no form for a cluster: {statement[:60]}")
    where = f" ON CLUSTER '{cluster}'"
    whole = statement[: named.end()] + where + statement[named.end() :]

    def engine(found: re.Match[str]) -> str:
        more = f", {found[2]}" if found[2] else ""
        return f"ENGINE = Replicated{found[1]}({_PLACE}{more})"

    return _ENGINE.sub(engine, whole)


def migrate(
    client: Client, *, cluster: str | None = None, pause: Callable[[float], object] | None = None
) -> None:
    """Run what is missing. With `pause`, under the lock of a server that others use too.

    Raises EngineUnavailable when another process holds the lock for very long.
    """
    first, *others = statements(cluster)
    client.command(first)  # the database, in which the lock is
    if pause is None:
        _run(client, others, cluster)
        return
    with locked(client, pause):
        _run(client, others, cluster)


def _run(client: Client, others: list[str], cluster: str | None) -> None:
    for statement in others:
        client.command(statement)
    for statement in missing_roll_ups(client):
        client.command(statement if cluster is None else replicated(statement, cluster))


@contextmanager
def locked(client: Client, pause: Callable[[float], object]) -> Iterator[None]:
    """Hold the lock; wait for a process that holds it. Raises EngineUnavailable."""
    for _ in range(TRIES):
        try:
            client.command(f"CREATE TABLE {LOCK} (x UInt8) ENGINE = Memory")
            break
        except DatabaseError as error:
            if f"code: {_TABLE_EXISTS}" not in str(error).lower():
                raise
        database, table = LOCK.split(".")
        (row,) = client.query(
            "SELECT max(dateDiff('second', metadata_modification_time, now())) "
            "FROM system.tables WHERE database = {database:String} AND name = {table:String}",
            parameters={"database": database, "table": table},
        ).result_rows
        if row[0] > STALE_S:
            client.command(f"DROP TABLE IF EXISTS {LOCK}")
        else:
            pause(1.0)
    else:
        raise EngineUnavailable("another process is changing the ClickHouse tables")
    try:
        yield
    finally:
        client.command(f"DROP TABLE IF EXISTS {LOCK}")


def missing_roll_ups(client: Client) -> list[str]:
    """A statement for each roll-up that some part of its table lacks, unless it is being made."""
    rows = client.query(
        "SELECT p.table AS table, p.name AS name FROM system.projections AS p "
        "INNER JOIN (SELECT table, name FROM system.parts "
        "WHERE database = 'gangline' AND active AND rows > 0) AS t ON t.table = p.table "
        "LEFT JOIN (SELECT table, name, parent_name FROM system.projection_parts "
        "WHERE database = 'gangline' AND active) AS m "
        "ON m.table = p.table AND m.name = p.name AND m.parent_name = t.name "
        "WHERE p.database = 'gangline' AND m.parent_name = '' "
        "AND (p.table, p.name) NOT IN (SELECT table, extract(command, "
        "'MATERIALIZE PROJECTION (?:IF EXISTS )?`?(\\w+)') FROM system.mutations "
        "WHERE database = 'gangline' AND NOT is_done) "
        "GROUP BY table, name ORDER BY table, name"
    ).result_rows
    return [f"ALTER TABLE gangline.{table} MATERIALIZE PROJECTION {name}" for table, name in rows]


def _split(text: str) -> list[str]:
    without_comments = re.sub(r"^--.*$", "", text, flags=re.MULTILINE)
    return [part.strip() for part in without_comments.split(";\n") if part.strip(" ;\n")]
