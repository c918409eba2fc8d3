"""Rows of jobs in MLflow's tables, on SQLite; PostgreSQL is in tests/integration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

sa = pytest.importorskip("sqlalchemy")

from gangline_bus.ports import TopicPartition  # noqa: E402 - it needs sqlalchemy
from gangline_mlflow.database import DatabaseAway  # noqa: E402
from gangline_mlflow.job_changes import Change, EndedAttempt, NewRun  # noqa: E402
from gangline_mlflow.job_table import Experiment, JobTable  # noqa: E402
from gangline_mlflow.job_usage import Usage  # noqa: E402
from gangline_schemas.mlflow_workspace import family_of, mlflow_run_id  # noqa: E402

TABLES = (
    """
    CREATE TABLE runs (
      run_uuid VARCHAR(32) PRIMARY KEY, name VARCHAR(250), source_type VARCHAR(20),
      source_name VARCHAR(500), entry_point_name VARCHAR(50), user_id VARCHAR(256),
      status VARCHAR(20), start_time BIGINT, end_time BIGINT, deleted_time BIGINT,
      source_version VARCHAR(50), lifecycle_stage VARCHAR(20), artifact_uri VARCHAR(200),
      experiment_id INTEGER)
    """,
    """
    CREATE TABLE tags (key VARCHAR(250), value VARCHAR(8000),
      run_uuid VARCHAR(32) REFERENCES runs, PRIMARY KEY (key, run_uuid))
    """,
    """
    CREATE TABLE params (key VARCHAR(250), value VARCHAR(8000) NOT NULL,
      run_uuid VARCHAR(32) REFERENCES runs, PRIMARY KEY (key, run_uuid))
    """,
)
LOG = TopicPartition("gangline.scheduling", 0)
FIRST = Usage(model="cpu", gpu_seconds={"cpu": 4.0})
SECOND = Usage(model="cpu", gpu_seconds={"cpu": 5.5})
PLACE = Experiment(3, "mlflow-artifacts:/workspaces/nlp/3")


def new(**params: str) -> NewRun:
    return NewRun("nlp", "nlp/default", "ada", 1000, "python x.py", params)


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    made = sa.create_engine(f"sqlite:///{tmp_path / 'test.db'}")
    with made.begin() as connection:
        for statement in TABLES:
            connection.execute(sa.text(statement))
    return made


@pytest.fixture
def table(engine: Any) -> JobTable:
    return JobTable(engine)


def rows(engine: Any, statement: str) -> list[tuple[Any, ...]]:
    with engine.begin() as connection:
        return [tuple(row) for row in connection.execute(sa.text(statement))]


def test_a_run_is_made_once_with_params_that_mlflow_allows(engine: Any, table: JobTable) -> None:
    odd = {"lr": "0.1", "a\tb(c)": "x", "/": "y", "long": "z" * 9000, "": "nothing", "nul": "a\0b"}
    for _ in range(2):
        table.add({"j": (new(**odd), PLACE)})
    run = mlflow_run_id("j")
    assert rows(engine, "SELECT run_uuid, name, status, artifact_uri, user_id FROM runs") == [
        (run, "j", "SCHEDULED", f"{PLACE.artifacts}/{run}/artifacts", "ada")
    ]
    found = dict(rows(engine, "SELECT key, value FROM params"))
    assert found == {"lr": "0.1", "a_b_c_": "x", "_": "y", "long": "z" * 6000, "nul": "ab"}


def test_changes_and_their_positions_are_written_together(engine: Any, table: JobTable) -> None:
    assert table.positions() == {}
    table.add({"j": (new(), PLACE)})
    change = Change(status=("RUNNING", None), tags={"gangline.state": "running"})
    table.write({"j": change, "unknown": change}, {"j": FIRST}, {"n1": "cpu"}, {LOG: 7})
    assert table.positions() == {LOG: 7}
    assert table.usage(["j", "unknown"]) == {"j": FIRST}
    assert table.gpu_models() == {"n1": "cpu"}
    assert rows(engine, "SELECT status FROM runs") == [("RUNNING",)]
    assert rows(engine, "SELECT key, value FROM tags") == [("gangline.state", "running")]
    table.write({"j": Change(status=("FINISHED", 9))}, {"j": SECOND}, {}, {LOG: 8})
    assert rows(engine, "SELECT status, end_time FROM runs") == [("FINISHED", 9)]
    assert (table.positions(), table.usage(["j"])) == ({LOG: 8}, {"j": SECOND})


def test_a_batch_that_fails_leaves_no_position(engine: Any, table: JobTable) -> None:
    table.add({"j": (new(), PLACE)})
    change = Change(status=("RUNNING", None), tags={"a": "b"})
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE gangline_node_gpus"))
    with pytest.raises(DatabaseAway, match="no such table"):
        table.write({"j": change}, {}, {"n1": "cpu"}, {LOG: 7})
    assert table.positions() == {}
    assert rows(engine, "SELECT status FROM runs") == [("SCHEDULED",)]
    assert rows(engine, "SELECT key FROM tags") == []


def test_the_end_of_an_attempt_ends_its_runs_that_still_run(engine: Any, table: JobTable) -> None:
    table.add({"j": (new(), PLACE)})
    family = family_of("j")
    runs = {
        family + "0" * 16: ("RUNNING", "1"),
        family + "f" * 16: ("FINISHED", "1"),
        family + "1" * 16: ("RUNNING", "2"),
        "0" * 32: ("RUNNING", "1"),
    }
    with engine.begin() as connection:
        for run, (status, attempt) in runs.items():
            connection.execute(
                sa.text("INSERT INTO runs (run_uuid, status) VALUES (:run, :status)"),
                {"run": run, "status": status},
            )
            connection.execute(
                sa.text("INSERT INTO tags VALUES ('gangline.attempt', :attempt, :run)"),
                {"run": run, "attempt": attempt},
            )
    ended = Change(status=("RUNNING", None), tags={"gangline.attempt": "1"})
    ended.ended.append(EndedAttempt(1, "KILLED", 5))
    table.write({"j": ended}, {}, {}, {LOG: 1})
    found = dict(rows(engine, "SELECT run_uuid, status FROM runs"))
    assert found.pop(mlflow_run_id("j")) == "RUNNING"
    assert list(found.values()) == ["KILLED", "FINISHED", "RUNNING", "RUNNING"]
