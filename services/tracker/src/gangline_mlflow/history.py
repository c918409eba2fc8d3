"""Histories of metrics: reads of the table `metric_points`, in the rows and orders of MLflow.

Points that a client repeated are rows that are repeated; MLflow shows each once. To a job's own run
belongs what the job reported too, which is in `steps`: at each step the newest attempt's value.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import OperationalError

Row = tuple[str, int, int, float, bool]
"""(run, step, Unix time in ms, value, whether it is a NaN)."""

MOST_POINTS = 100_000
"""Of one answer, which is some 10 MB. MLflow's client asks for 25,000."""
_CLIENTS = 4
_COLUMNS = "run_id, step, time_ms, number, is_nan"
_JSON = "step, time_ms AS timestamp, if(is_nan, NULL, number) AS value, {name:String} AS key"
# `value` is renamed, since an ORDER BY would take the answer's `value`, which NaNs lack.
# In the order of the table, equal rows are neighbours: that takes a third less than DISTINCT.
_LOGGED = (
    "SELECT run_id, step, time_ms, value AS number, is_nan FROM gangline.metric_points "
    "WHERE run_id IN {runs:Array(String)} AND name = {name:String}%s"
)
_REPORTED = (
    "SELECT {job_runs:Array(String)}[indexOf({jobs:Array(String)}, job)] AS run_id, step, "
    "argMax(ms, place) AS time_ms, argMax(value, place) AS number, false AS is_nan "
    "FROM (SELECT run_id AS job, toInt64(s.step) AS step, toUnixTimestamp64Milli(time) AS ms, "
    "value, (attempt, -toInt64(rank)) AS place FROM gangline.steps AS s "
    "WHERE run_id IN {jobs:Array(String)} AND team = {team:String} AND name = {name:String}%s) "
    "GROUP BY job, step"
)
_ROWS = (
    "(SELECT * FROM (%s ORDER BY run_id, step, time_ms, number, is_nan) "
    "LIMIT 1 BY run_id, step, time_ms, number, is_nan)"
)
_BETWEEN = " AND step BETWEEN {low:Int64} AND {high:Int64}"
# MLflow's sample: of `size` equal parts the first row, and of the last part the last row. Of n
# rows, the first n % size parts have one row more than the others.
_SAMPLE = """
SELECT %s FROM (
  SELECT *, intDiv(total, {size:Int64}) AS each, (total %% {size:Int64}) * (each + 1) AS longer
  FROM (
    SELECT *, toInt64(row_number() OVER (
        PARTITION BY run_id ORDER BY step, time_ms, number, is_nan)) - 1 AS place,
      toInt64(count() OVER (PARTITION BY run_id)) AS total
    FROM {rows}))
WHERE total <= {size:Int64} OR place = total - 1 OR (place < total - each AND
  if(place < longer, place %% (each + 1), (place - longer) %% each) = 0)
ORDER BY indexOf({runs:Array(String)}, run_id), place
"""


class Unreadable(Exception):
    """ClickHouse or the database does not answer."""


class JobOfRun(NamedTuple):
    """The job whose own run it is."""

    job_id: str
    team: str


@dataclass
class Histories:
    """Queries of one ClickHouse. May be used from any thread; a client serves one at a time.

    Each raises Unreadable while ClickHouse or the database is away. The runs of a query are of one
    team.
    """

    url: str
    user: str
    password: str = field(repr=False)
    jobs_of: Callable[[Sequence[str]], Mapping[str, JobOfRun]] = lambda _: {}
    """Which of these runs are the own runs of jobs. Raises Unreadable."""

    def __post_init__(self) -> None:
        self._idle: queue.LifoQueue[Client] = queue.LifoQueue()
        self._places = threading.BoundedSemaphore(_CLIENTS)

    def positions(self) -> dict[int, int]:
        """The next offset of each partition that is not in the table yet."""
        lines = self._lines(
            "SELECT partition, max(offset) + 1 FROM gangline.metric_points GROUP BY partition",
            "TabSeparated",
            {},
        )
        return {int(partition): int(offset) for partition, offset in map(bytes.split, lines)}

    def of_run(
        self, run_id: str, name: str, offset: int = 0, limit: int = MOST_POINTS
    ) -> list[Row]:
        """A run's points by time."""
        return self._points(_of_run(_COLUMNS, offset, limit), [run_id], name)

    def of_run_json(
        self, run_id: str, name: str, offset: int = 0, limit: int = MOST_POINTS
    ) -> list[bytes]:
        """The same as JSON objects."""
        return self._objects(_of_run(_JSON, offset, limit), [run_id], name)

    def of_runs(self, run_ids: Sequence[str], name: str, limit: int) -> list[Row]:
        """Points of several runs, by run and time."""
        return self._points(
            f"SELECT {_COLUMNS} FROM {{rows}} "  # noqa: S608
            f"ORDER BY run_id, time_ms, step, number LIMIT {int(limit)}",
            run_ids,
            name,
        )

    def at_steps(self, run_id: str, name: str, steps: Sequence[int], limit: int) -> list[Row]:
        """A run's points at these steps, by step."""
        return self._points(
            f"SELECT {_COLUMNS} FROM {{rows}} "  # noqa: S608
            f"ORDER BY step, time_ms, number LIMIT {int(limit)}",
            [run_id],
            name,
            " AND step IN {steps:Array(Int64)}",
            steps=list(steps),
        )

    def last_step(self, run_id: str, name: str) -> int:
        """The largest step; 0 without points."""
        lines = self._read("SELECT max(step) FROM {rows}", "TabSeparated", [run_id], name)
        return int(lines[0])

    def sample(
        self, run_ids: Sequence[str], name: str, size: int, steps: tuple[int, int] | None
    ) -> list[Row]:
        """About `size` points of each run by step, the runs in the order given."""
        within, bounds = _within(steps)
        return self._points(_SAMPLE % _COLUMNS, run_ids, name, within, size=size, **bounds)

    def sample_json(
        self, run_ids: Sequence[str], name: str, size: int, steps: tuple[int, int] | None
    ) -> list[bytes]:
        """The same as JSON objects."""
        within, bounds = _within(steps)
        sql = _SAMPLE % f"run_id, {_JSON}"
        return self._objects(sql, run_ids, name, within, size=size, **bounds)

    def _points(self, *asked: Any, **given: Any) -> list[Row]:
        sql, *rest = asked
        lines = map(json.loads, self._read(sql, "JSONCompactEachRow", *rest, **given))
        return [(str(r), int(s), int(t), float(v), bool(n)) for r, s, t, v, n in lines]

    def _objects(self, *asked: Any, **given: Any) -> list[bytes]:
        sql, *rest = asked
        lines = self._read(sql, "JSONEachRow", *rest, **given)
        return [line.replace(b'"value":null', b'"value":"NaN"', 1) for line in lines]

    def _read(
        self,
        sql: str,
        shape: str,
        run_ids: Sequence[str],
        name: str,
        within: str = "",
        **given: Any,
    ) -> list[bytes]:
        """Lines of the answer to `sql`, in which {rows} stands for the points of the metric."""
        source = _LOGGED % within
        given |= {"runs": list(run_ids), "name": name}
        jobs = self.jobs_of(run_ids)
        if jobs:
            source = f"SELECT * FROM ({source} UNION ALL {_REPORTED % within})"  # noqa: S608
            given |= {
                "jobs": [of.job_id for of in jobs.values()],
                "job_runs": list(jobs),
                "team": next(iter(jobs.values())).team,
            }
        return self._lines(sql.replace("{rows}", _ROWS % source), shape, given)

    def _lines(self, sql: str, shape: str, given: dict[str, Any]) -> list[bytes]:
        try:
            with self._client() as client:
                answer: bytes = client.raw_query(sql, parameters=given, fmt=shape)
        except OperationalError as error:
            raise Unreadable("ClickHouse does not answer") from error
        return answer.splitlines()

    @contextmanager
    def _client(self) -> Iterator[Client]:
        """A client for this thread alone; one that failed is not used again."""
        with self._places:
            try:
                client = self._idle.get_nowait()
            except queue.Empty:
                client = self._connect()
            try:
                yield client
            except BaseException:
                client.close()
                raise
            self._idle.put(client)

    def _connect(self) -> Client:
        return clickhouse_connect.get_client(
            dsn=self.url,
            username=self.user,
            password=self.password,
            autogenerate_session_id=False,
            connect_timeout=2,
            send_receive_timeout=60,
            query_retries=0,
        )


def _of_run(columns: str, offset: int, limit: int) -> str:
    paging = f" LIMIT {int(limit)}"
    if offset:
        paging += f" OFFSET {int(offset)}"
    return f"SELECT {columns} FROM {{rows}} ORDER BY time_ms, step, number{paging}"  # noqa: S608


def _within(steps: tuple[int, int] | None) -> tuple[str, dict[str, int]]:
    if steps is None:
        return "", {}
    return _BETWEEN, dict(zip(("low", "high"), steps, strict=True))
