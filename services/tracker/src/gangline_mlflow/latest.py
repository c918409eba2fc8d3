"""MLflow's table `latest_metrics`: the newest value of each metric; and the offsets behind it."""

from __future__ import annotations

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import IntegrityError

from gangline_bus.poison import POISONED, trace_of
from gangline_mlflow.database import DatabaseAway, may_be_of_an_event, transaction

log = structlog.get_logger(__name__)

LatestRow = tuple[int, int, float, bool]
"""(step, Unix time in ms, value, whether it is a NaN); the first three decide which is newer."""
Latest = dict[tuple[str, str], LatestRow]
"""By (run, name)."""

_CHUNK = 500
_TRIES = 3
_ANALYZED = 1_000
"""Rows of each index that are looked at: the work does not grow with the table."""
_CREATE = """
CREATE TABLE IF NOT EXISTS gangline_metric_positions
(topic_partition INTEGER PRIMARY KEY, next_offset BIGINT NOT NULL)
"""
_SET_POSITION = """
INSERT INTO gangline_metric_positions (topic_partition, next_offset) VALUES (:place, :next)
ON CONFLICT (topic_partition) DO UPDATE SET next_offset = excluded.next_offset
"""
_SET_LATEST = """
INSERT INTO latest_metrics AS known (run_uuid, key, step, timestamp, value, is_nan)
VALUES (:run, :name, :step, :time_ms, :value, :is_nan)
ON CONFLICT (key, run_uuid) DO UPDATE SET
  step = excluded.step, timestamp = excluded.timestamp,
  value = excluded.value, is_nan = excluded.is_nan
WHERE (excluded.step, excluded.timestamp, excluded.value)
    > (known.step, known.timestamp, known.value)
"""


def keep_newer(latest: Latest, key: tuple[str, str], row: LatestRow) -> None:
    """Put a value in, unless a newer one is there."""
    known = latest.get(key)
    if known is None or row[:3] > known[:3]:
        latest[key] = row


class LatestTable:
    """`latest_metrics` of an MLflow database: SQLite or PostgreSQL."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        with engine.begin() as connection:
            connection.execute(sa.text(_CREATE))

    def positions(self) -> dict[int, int]:
        """The next offset of each partition that is not in the table yet."""
        with self._engine.begin() as connection:
            rows = connection.execute(
                sa.text("SELECT topic_partition, next_offset FROM gangline_metric_positions")
            )
            return {int(place): int(offset) for place, offset in rows}

    def write(self, latest: Latest, positions: dict[int, int]) -> None:
        """Write both in one transaction; both may be empty.

        Values of runs that were removed are left out. One that the database refuses is skipped
        and counted.

        Raises DatabaseAway. The transaction may be there all the same; writing it again is safe.
        """
        try:
            self._write_all(latest, positions)
        except Exception as error:
            if not latest or not may_be_of_an_event(error):
                raise
            self._write_halves(latest, error)
            self._write_all({}, positions)

    def _write_halves(self, latest: Latest, error: Exception) -> None:
        """Write values that were refused together; skip those that are refused alone."""
        rows = list(latest.items())
        if len(rows) == 1:
            log.critical("poison value skipped", run=rows[0][0][0], trace=trace_of(error))
            POISONED.add(1, {"service": "mlflow", "topic": "latest_metrics"})
            return
        middle = len(rows) // 2
        for half in (dict(rows[:middle]), dict(rows[middle:])):
            self.write(half, {})

    def _write_all(self, latest: Latest, positions: dict[int, int]) -> None:
        for attempt in range(1, _TRIES + 1):
            try:
                with transaction(self._engine) as connection:
                    self._write(connection, latest, positions)
            except IntegrityError:  # a run was removed meanwhile
                if attempt == _TRIES:
                    raise
            else:
                return

    def analyze(self) -> None:
        """SQLite: gather the statistics without which a search of 10,000 runs takes seconds.

        MLflow never does; PostgreSQL does by itself. New connections see them. While the database
        does not answer, the earlier ones stay.
        """
        if self._engine.dialect.name != "sqlite":
            return
        try:
            with transaction(self._engine) as connection:
                connection.execute(sa.text(f"PRAGMA analysis_limit = {_ANALYZED}"))
                for table in ("runs", "latest_metrics", "params", "tags"):
                    connection.execute(sa.text(f"ANALYZE {table}"))
        except DatabaseAway as error:
            log.warning("no statistics are gathered", error=str(error))
        self._engine.dispose()

    @staticmethod
    def _write(connection: sa.Connection, latest: Latest, positions: dict[int, int]) -> None:
        known = _known_runs(connection, sorted({run for run, _ in latest}))
        rows = [
            dict(zip(("run", "name", "step", "time_ms", "value", "is_nan"), (*key, *row)))  # noqa: B905
            for key, row in latest.items()
            if key[0] in known
        ]
        if rows:
            connection.execute(sa.text(_SET_LATEST), rows)
        places = [{"place": place, "next": offset} for place, offset in sorted(positions.items())]
        if places:
            connection.execute(sa.text(_SET_POSITION), places)


def _known_runs(connection: sa.Connection, runs: list[str]) -> set[str]:
    known: set[str] = set()
    statement = sa.text("SELECT run_uuid FROM runs WHERE run_uuid IN :runs")
    statement = statement.bindparams(sa.bindparam("runs", expanding=True))
    for start in range(0, len(runs), _CHUNK):
        part = {"runs": runs[start : start + _CHUNK]}
        known.update(run for (run,) in connection.execute(statement, part))
    return known
