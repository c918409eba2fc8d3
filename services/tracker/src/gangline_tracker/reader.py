"""Outside queries on the embedded engine, each with a connection of its own and within limits."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import chdb

from gangline_tracker.sql_guard import engine_filters, guard

DEFAULT_FORMAT = "TabSeparated"
_CODE = re.compile(r"Code: (\d+)\.")
_PARAMETER = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")
_FALLBACK_CODE = 1002  # UNKNOWN_EXCEPTION
_KNOWN_CHARS = 20_000
_known = lru_cache(maxsize=256)(guard)
"""Services and dashboards ask the same again; to read a query of curves takes 13 ms."""


class QueryFailed(Exception):
    """The engine refused or gave up. `code` is ClickHouse's number for it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        found = _CODE.search(message)
        self.code = int(found[1]) if found else _FALLBACK_CODE


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one outside query."""

    time_s: float = 30.0
    memory_bytes: int = 1 << 30
    result_rows: int = 2_000_000
    result_bytes: int = 256 << 20
    threads: int = 2
    at_once: int = 2


@dataclass(frozen=True, slots=True)
class Answer:
    """The engine's answer in `format`."""

    body: bytes
    format: str


class QueryReader:
    """Runs guarded queries. May be used from any thread; each call blocks until it is done."""

    def __init__(self, path: str, limits: Limits | None = None) -> None:
        self._path = path
        self._limits = limits or Limits()
        self._running = threading.BoundedSemaphore(self._limits.at_once)

    def query(
        self,
        text: str,
        teams: frozenset[str] | None,
        *,
        parameters: Mapping[str, str] | None = None,
        default_format: str | None = None,
    ) -> Answer:
        """Guard, wait for a turn, and run. Raises SqlRefused or QueryFailed."""
        guarded = (_known if len(text) <= _KNOWN_CHARS else guard)(text, teams)
        wanted = guarded.format or default_format or DEFAULT_FORMAT
        setup = self._setup(teams, parameters or {})
        with self._running:
            return Answer(self._run(guarded.sql, wanted, setup), wanted)

    def _run(self, sql: str, wanted: str, setup: list[str]) -> bytes:
        # A new connection each time (0.4 ms): after a failed query chDB gives rows of that
        # query as the answer to the next one on the same connection.
        try:
            connection = chdb.connect(self._path)
            try:
                for statement in setup:
                    connection.query(statement)
                body: bytes = connection.query(sql, wanted).bytes()
                return body
            finally:
                connection.close()
        except RuntimeError as error:
            raise QueryFailed(str(error)) from None

    def _setup(self, teams: frozenset[str] | None, parameters: Mapping[str, str]) -> list[str]:
        limits = self._limits
        settings = {
            "max_execution_time": str(limits.time_s),
            "max_memory_usage": str(limits.memory_bytes),
            "max_result_rows": str(limits.result_rows),
            "max_result_bytes": str(limits.result_bytes),
            "result_overflow_mode": "'throw'",
            "max_threads": str(limits.threads),
            "max_ast_depth": "500",
            "allow_introspection_functions": "0",
            "allow_ddl": "0",
        }
        filters = engine_filters(teams)
        if filters:
            pairs = ", ".join(f"{quote(table)}: {quote(row)}" for table, row in filters.items())
            settings["additional_table_filters"] = "{" + pairs + "}"
        for name, value in parameters.items():
            if not _PARAMETER.match(name):
                raise QueryFailed("Code: 36. a query parameter's name is letters, digits and '_'")
            settings[f"param_{name}"] = quote(value)
        joined = ", ".join(f"{name} = {value}" for name, value in settings.items())
        return [f"SET {joined}", "SET readonly = 1"]


def quote(text: str) -> str:
    """`text` as an SQL string."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
