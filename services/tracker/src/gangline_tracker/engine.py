"""The database: a ClickHouse server by URL, or the embedded engine at `chdb:///absolute/path`.

Both are used through clickhouse-connect clients, one for each thread.
The embedded engine belongs to one process per path; the tracker is that process.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import OperationalError

EMBEDDED = "chdb"
_CLUSTER = re.compile(r"[A-Za-z0-9_.-]{1,64}")
ACKNOWLEDGED = {"async_insert": 0}
"""An INSERT that a server acknowledged is in its table."""
REPLICATED = {
    **ACKNOWLEDGED,
    # It is on most replicas, and every replica that answers a query has it.
    "insert_quorum": "auto",
    "insert_quorum_parallel": 0,
    "select_sequential_consistency": 1,
}
SCHEMES = (EMBEDDED, "http", "https")


class EngineUnavailable(Exception):
    """The ClickHouse server could not be reached; nothing is known about the last INSERT."""


class EngineSettingsError(ValueError):
    """The address of the database cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Where the database is. Open one client per thread."""

    dsn: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    cluster: str | None = None
    """Of a server: the cluster whose servers have the tables, replicated."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.dsn)
        if parts.scheme not in SCHEMES:
            raise EngineSettingsError(
                "clickhouse must be chdb:///absolute/path or the http(s):// URL of a server"
            )
        if parts.username or parts.password:
            raise EngineSettingsError(
                "clickhouse must not hold credentials; set clickhouse_user, clickhouse_password"
            )
        if self.cluster is not None and (
            parts.scheme == EMBEDDED or not _CLUSTER.fullmatch(self.cluster)
        ):
            raise EngineSettingsError(
                "clickhouse_cluster must be the name of a cluster of a server, of letters, digits, "
                "'-', '_' and '.'"
            )
        if parts.scheme == EMBEDDED and (parts.netloc or not parts.path.startswith("/")):
            raise EngineSettingsError("the embedded engine needs chdb:/// and an absolute path")

    @property
    def embedded(self) -> bool:
        """Whether this process owns the engine."""
        return urlsplit(self.dsn).scheme == EMBEDDED

    @property
    def path(self) -> str:
        """The folder of the embedded engine, as chDB compares it."""
        return str(Path(urlsplit(self.dsn).path).resolve())

    def client(self) -> Client:
        """A client for one thread. Raises EngineUnavailable."""
        if self.embedded:
            folder = Path(self.path)
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return clickhouse_connect.get_client(dsn=f"{EMBEDDED}://{folder}")
        try:
            return clickhouse_connect.get_client(
                dsn=self.dsn,
                username=self.user,
                password=self.password or "",
                autogenerate_session_id=False,
                settings=dict(ACKNOWLEDGED if self.cluster is None else REPLICATED),
            )
        except OperationalError as error:
            raise EngineUnavailable("the ClickHouse server does not answer") from error


def wait_for_inserts(client: Client, pause: Callable[[float], object]) -> None:
    """On a server: wait until no INSERT of a process that is gone is still running.

    Such an INSERT could add rows after the position was read. It ends within its 60 s limit;
    raises EngineUnavailable after 90 s.
    """
    for _ in range(90):
        running = client.query(
            "SELECT count() FROM system.processes WHERE user = currentUser() "
            "AND query_kind = 'Insert' AND query ILIKE '%gangline%'"
        )
        if not running.result_rows[0][0]:
            return
        pause(1.0)
    raise EngineUnavailable("an earlier INSERT is still running on the ClickHouse server")
