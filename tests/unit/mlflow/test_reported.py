"""Metrics that jobs report, over the bus in memory into SQLite."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

sa = pytest.importorskip("sqlalchemy")

from gangline_bus.codec import encode  # noqa: E402 - it needs sqlalchemy
from gangline_bus.memory import Broker  # noqa: E402
from gangline_bus.topics import TopicNames  # noqa: E402
from gangline_mlflow.artifacts import Artifacts  # noqa: E402
from gangline_mlflow.database import patiently  # noqa: E402
from gangline_mlflow.history import Histories, JobOfRun, Unreadable  # noqa: E402
from gangline_mlflow.job_table import JobTable  # noqa: E402
from gangline_mlflow.latest import LatestTable  # noqa: E402
from gangline_mlflow.parts import Parts  # noqa: E402
from gangline_mlflow.reported import ReportedMetrics  # noqa: E402
from gangline_schemas.catalog import Topic  # noqa: E402
from gangline_schemas.envelope import Envelope  # noqa: E402
from gangline_schemas.events.progress import RunProgress, progress_key  # noqa: E402
from gangline_schemas.mlflow_workspace import mlflow_run_id  # noqa: E402

RUN, OTHER = mlflow_run_id("j"), "0" * 32
TABLES = (
    "CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, workspace VARCHAR(63))",
    "CREATE TABLE runs (run_uuid VARCHAR(32) PRIMARY KEY, experiment_id INTEGER)",
    "CREATE TABLE tags (key VARCHAR(250), value VARCHAR(8000), run_uuid VARCHAR(32))",
    """
    CREATE TABLE latest_metrics (
      key VARCHAR(250), value FLOAT NOT NULL, timestamp BIGINT, step BIGINT NOT NULL,
      is_nan BOOLEAN NOT NULL, run_uuid VARCHAR(32), PRIMARY KEY (key, run_uuid))
    """,
    "INSERT INTO experiments VALUES (1, 'nlp')",
    f"INSERT INTO runs VALUES ('{RUN}', 1)",
    f"INSERT INTO tags VALUES ('gangline.job', 'j', '{RUN}')",
    f"INSERT INTO runs VALUES ('{OTHER}', 1)",
    f"INSERT INTO tags VALUES ('gangline.job', 'j', '{OTHER}')",
)


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    url = f"sqlite:///{tmp_path / 'test.db'}"
    made = sa.create_engine(url, connect_args={"timeout": 0})
    with made.begin() as connection:
        for statement in TABLES:
            connection.execute(sa.text(statement))
    return made


class Reports:
    """Progress on a bus; `metrics` reads it, and does not follow by itself."""

    def __init__(self, engine: Any) -> None:
        names, bus = TopicNames(""), Broker().connect("mlflow")
        bus.create_topics(names.settings())
        self.topic, self.writer = names.name(Topic.PROGRESS), bus.writer()
        parts = Parts(bus, names, cast("Histories", None), cast("Artifacts", None), lambda: None)
        self.jobs = JobTable(engine)
        self.metrics = ReportedMetrics(parts, LatestTable(engine), self.jobs)
        self.metrics._reader.assign(dict.fromkeys(names.places(bus, Topic.PROGRESS), 0))

    def report(self, step: int, team: str = "nlp", job: str = "j", **metrics: float) -> None:
        """Report and read it back."""
        event = RunProgress(
            run_id=job, team=team, attempt=1, rank=0, step=step, time_ms=step, metrics=metrics
        )
        key = progress_key(team, job)
        envelope = Envelope(f"{key}-{step}", "test", datetime.now(UTC), key, event)
        self.writer.send(encode(envelope, topic=self.topic))
        self.metrics._take(self.metrics._reader.poll(10, 1.0))


def rows(engine: Any) -> dict[tuple[str, str], tuple[int, float]]:
    with engine.begin() as connection:
        found = connection.execute(sa.text("SELECT run_uuid, key, step, value FROM latest_metrics"))
        return {(run, key): (step, value) for run, key, step, value in found}


def test_newest_values_of_known_jobs_are_written(engine: Any) -> None:
    reports = Reports(engine)
    reports.report(5, loss=0.5, lr=0.1, **{"x" * 251: 1.0})
    reports.report(6, loss=0.4)
    reports.report(9, team="other", loss=9.0)  # a program may say so
    reports.report(9, job="without-a-run", loss=9.0)
    patiently(reports.metrics.flush)
    assert rows(engine) == {(RUN, "loss"): (6, 0.4), (RUN, "lr"): (5, 0.1)}
    assert sum(reports.jobs.positions().values()) == 4


def test_values_wait_for_a_database_that_does_not_answer(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = Reports(engine)
    reports.report(5, loss=0.5)
    with engine.connect() as other:
        other.exec_driver_sql("BEGIN EXCLUSIVE")
        with pytest.raises(Unreadable, match="database"):
            reports.metrics.jobs_of([RUN])
        monkeypatch.setattr(
            "gangline_mlflow.database.time.sleep", lambda _: other.exec_driver_sql("ROLLBACK")
        )
        patiently(reports.metrics.flush)
    assert rows(engine) == {(RUN, "loss"): (5, 0.5)}


def test_only_own_runs_of_jobs_have_reports(engine: Any) -> None:
    assert Reports(engine).metrics.jobs_of([RUN, OTHER]) == {RUN: JobOfRun("j", "nlp")}


def test_a_record_that_cannot_be_taken_is_skipped(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = Reports(engine)
    fold = reports.metrics._fold

    def takes_step_5_only(event: RunProgress) -> None:
        if event.step != 5:
            raise OverflowError("a step")
        fold(event)

    monkeypatch.setattr(reports.metrics, "_fold", takes_step_5_only)
    reports.report(5, loss=0.5)
    reports.report(6, loss=0.4)
    patiently(reports.metrics.flush)
    assert rows(engine) == {(RUN, "loss"): (5, 0.5)}
    assert sum(reports.jobs.positions().values()) == 2
