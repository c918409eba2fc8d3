"""`latest_metrics` and the offsets behind it, on SQLite; PostgreSQL is in tests/integration."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from structlog.testing import capture_logs

sa = pytest.importorskip("sqlalchemy")

from gangline_mlflow.database import DatabaseAway  # noqa: E402 - it needs sqlalchemy
from gangline_mlflow.latest import Latest, LatestTable  # noqa: E402

TABLES = (
    "CREATE TABLE runs (run_uuid VARCHAR(32) PRIMARY KEY)",
    """
    CREATE TABLE latest_metrics (
      key VARCHAR(250), value FLOAT NOT NULL, timestamp BIGINT, step BIGINT NOT NULL,
      is_nan BOOLEAN NOT NULL, run_uuid VARCHAR(32) REFERENCES runs, PRIMARY KEY (key, run_uuid))
    """,
    "CREATE TABLE params (key VARCHAR(250), run_uuid VARCHAR(32))",
    "CREATE TABLE tags (key VARCHAR(250), run_uuid VARCHAR(32))",
    "INSERT INTO runs VALUES ('r1'), ('r2')",
)


@pytest.fixture
def engine(tmp_path: Path) -> sa.Engine:
    made = sa.create_engine(f"sqlite:///{tmp_path / 'test.db'}")
    with made.begin() as connection:
        for statement in TABLES:
            connection.execute(sa.text(statement))
    return made


def rows(engine: sa.Engine) -> Latest:
    with engine.begin() as connection:
        found = connection.execute(
            sa.text("SELECT run_uuid, key, step, timestamp, value, is_nan FROM latest_metrics")
        )
        return {
            (run, key): (step, at, value, bool(nan)) for run, key, step, at, value, nan in found
        }


@pytest.mark.parametrize(
    ("known", "written", "stays"),
    [
        ((5, 10, 1.0, False), (6, 1, 0.0, False), False),
        ((5, 10, 1.0, False), (4, 99, 9.0, False), True),
        ((5, 10, 1.0, False), (5, 11, 0.0, False), False),
        ((5, 10, 1.0, False), (5, 10, 2.0, False), False),
        ((5, 10, 1.0, False), (5, 10, 0.5, False), True),
        ((5, 10, 1.0, False), (5, 10, 0.0, True), True),
        ((-5, 10, 1.0, False), (-5, 10, 1.0, False), True),
    ],
)
def test_the_newest_value_stays(
    engine: sa.Engine,
    known: tuple[int, int, float, bool],
    written: tuple[int, int, float, bool],
    stays: bool,
) -> None:
    table = LatestTable(engine)
    table.write({("r1", "loss"): known}, {0: 1})
    table.write({("r1", "loss"): written}, {0: 2})
    assert rows(engine) == {("r1", "loss"): known if stays else written}


def test_values_of_removed_runs_are_left_out(engine: sa.Engine) -> None:
    table = LatestTable(engine)
    row = (1, 1, 1.0, False)
    many: Latest = {(f"gone-{number}", "loss"): row for number in range(1200)}
    table.write({**many, ("r2", "loss"): row}, {0: 7})
    assert rows(engine) == {("r2", "loss"): row}


def test_positions_are_written_with_the_values(engine: sa.Engine) -> None:
    table = LatestTable(engine)
    assert table.positions() == {}
    table.write({}, {0: 3, 2: 5})
    table.write({("r1", "a"): (1, 1, 1.0, False)}, {2: 9})
    assert LatestTable(engine).positions() == {0: 3, 2: 9}


def test_nothing_is_written_when_a_part_fails(engine: sa.Engine) -> None:
    table = LatestTable(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE gangline_metric_positions"))
    with pytest.raises(DatabaseAway, match="no such table"):
        table.write({("r1", "a"): (1, 1, 1.0, False)}, {0: 1})
    assert rows(engine) == {}


def test_a_database_that_cannot_write_is_away(engine: sa.Engine) -> None:
    table, row = LatestTable(engine), (1, 1, 1.0, False)
    hasty = sa.create_engine(engine.url, connect_args={"timeout": 0})
    with engine.connect() as other:
        other.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseAway, match="locked"):
            LatestTable(hasty).write({("r1", "a"): row}, {0: 1})
        other.exec_driver_sql("ROLLBACK")
    table.write({("r1", "a"): row}, {0: 1})
    assert rows(engine) == {("r1", "a"): row}


def test_statistics_are_gathered_beside_open_connections(engine: sa.Engine) -> None:
    table = LatestTable(engine)
    table.analyze()
    table.write({("r1", "a"): (1, 1, 1.0, False)}, {0: 1})
    with engine.begin() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM sqlite_stat1")).scalar()


def test_a_database_that_another_writer_holds_keeps_its_statistics(tmp_path: Path) -> None:
    path = tmp_path / "test.db"
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": 0})
    with engine.begin() as connection:
        for statement in TABLES:
            connection.execute(sa.text(statement))
    table = LatestTable(engine)
    holder = sqlite3.connect(path)
    holder.execute("BEGIN EXCLUSIVE")
    with capture_logs() as logs:
        table.analyze()
    holder.close()
    assert [line["event"] for line in logs] == ["no statistics are gathered"]


def test_a_value_that_the_database_refuses_is_skipped_and_the_others_are_written(
    engine: sa.Engine,
) -> None:
    table = LatestTable(engine)
    row, beyond = (1, 1, 1.0, False), (2**70, 1, 1.0, False)
    with capture_logs() as logged:
        table.write({("r1", "a"): row, ("r1", "b"): beyond, ("r2", "c"): row}, {0: 7})
    assert rows(engine) == {("r1", "a"): row, ("r2", "c"): row}
    assert table.positions() == {0: 7}
    (poison,) = (line for line in logged if line["log_level"] == "critical")
    assert (poison["event"], poison["run"]) == ("poison value skipped", "r1")
