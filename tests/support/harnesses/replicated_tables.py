"""Makes the tables of a cluster on the real engine with a real ZooKeeper.

`python -m support.harnesses.replicated_tables FOLDER PORT` prints the engine of each table. The
embedded engine has no port for other replicas. So its replica is never active: tables are made, but
take no rows and no changes, and statements ON CLUSTER are run without it.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

from chdb.session import Session

from gangline_tracker.migrate import statements

CLUSTER, SHARD, REPLICA = "main", "s1", "r1"


def opened(folder: Path, zookeeper_port: int) -> Session:
    """The engine, with a server's settings of a cluster."""
    settings = folder / "config.xml"
    settings.write_text(
        f"<clickhouse><zookeeper><node><host>127.0.0.1</host><port>{zookeeper_port}</port></node>"
        f"</zookeeper><macros><shard>{SHARD}</shard><replica>{REPLICA}</replica></macros>"
        "</clickhouse>"
    )
    return Session(f"{folder / 'data'}?config-file={settings}")


def engines(session: Session) -> dict[str, str]:
    """Makes the tables; each with its engine and the arguments of it."""
    for statement in statements(CLUSTER):
        if statement.startswith(("CREATE DATABASE", "CREATE TABLE")):
            session.query(statement.replace(f" ON CLUSTER '{CLUSTER}'", ""))
    found = session.query(
        "SELECT name, engine_full FROM system.tables WHERE database = 'gangline'", "JSONCompact"
    )
    rows = json.loads(str(found))["data"]
    # ZooKeeper says how many replicas there are.
    known = session.query(
        "SELECT table FROM system.replicas WHERE total_replicas = 1 AND replica_name = "
        f"'{REPLICA}' AND zookeeper_path = '/clickhouse/tables/{SHARD}/gangline/' || table",
        "JSONCompact",
    )
    assert sorted(json.loads(str(known))["data"]) == sorted([name] for name, _ in rows)
    return dict(rows)


if __name__ == "__main__":
    engine = opened(Path(sys.argv[1]), int(sys.argv[2]))
    try:
        print(json.dumps(engines(engine)), flush=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # the engine does not end in order while it looks for its replicas
