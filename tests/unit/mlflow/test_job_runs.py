"""Runs of jobs while the database is away: each event changes the tables once. On SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("mlflow")

import sqlalchemy as sa
from structlog.testing import capture_logs

from gangline_bus.codec import encode
from gangline_bus.memory import Broker
from gangline_bus.topics import TopicNames
from gangline_mlflow import job_runs
from gangline_mlflow.artifacts import Artifacts
from gangline_mlflow.database import DatabaseAway
from gangline_mlflow.history import Histories
from gangline_mlflow.job_changes import Changes
from gangline_mlflow.job_runs import JobRuns
from gangline_mlflow.job_usage import GPU_SECONDS
from gangline_mlflow.parts import Parts
from gangline_mlflow.plain import Point
from gangline_mlflow.points import Points
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.scheduling import ReleaseReason
from gangline_schemas.mlflow_workspace import mlflow_run_id
from support.builders.gangs import gang_released

AT = datetime(2026, 1, 1, tzinfo=UTC)
RUN = mlflow_run_id("j")
TABLES = (
    "CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, workspace VARCHAR(63))",
    """
    CREATE TABLE runs (run_uuid VARCHAR(32) PRIMARY KEY, experiment_id INTEGER,
      status VARCHAR(20), end_time BIGINT)
    """,
    "CREATE TABLE tags (key VARCHAR(250), value VARCHAR(8000), run_uuid VARCHAR(32))",
    "INSERT INTO experiments VALUES (1, 'nlp')",
    f"INSERT INTO runs (run_uuid, experiment_id) VALUES ('{RUN}', 1)",
)


def _no_trials(events: Sequence[object], _timeout_s: float) -> None:
    """Jobs here are no trials."""
    assert not events


class Follower:
    """Runs of jobs over a log on a bus, that do not follow by themselves."""

    def __init__(self, folder: Path) -> None:
        engine = sa.create_engine(f"sqlite:///{folder / 'test.db'}")
        with engine.begin() as connection:
            for statement in TABLES:
                connection.execute(sa.text(statement))
        names, bus = TopicNames(""), Broker().connect("mlflow")
        bus.create_topics(names.settings())
        self.topic, self.writer = names.name(Topic.SCHEDULING), bus.writer()
        self.sent: list[float] = []
        parts = Parts(bus, names, cast("Histories", None), cast("Artifacts", None), lambda: None)
        store = SimpleNamespace(engine=engine)
        points = SimpleNamespace(accept=self._accept, publish=_no_trials)
        self.runs = JobRuns(parts, store, cast("Points", points))
        self.runs._assign(self.runs._scheduling, Topic.SCHEDULING, {})
        self.runs._assign(self.runs._faults, Topic.FAULTS, {})

    def _accept(self, _workspace: str, _run: str, points: list[Point]) -> Future[None]:
        self.sent += [value for name, _, _, value in points if name == GPU_SECONDS]
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def release(self, gpu_s: float, job_id: str = "j") -> None:
        self.publish(gang_released(job_id, 1, AT, ReleaseReason.SUCCEEDED, gpu_s))

    def publish(self, event: Event) -> None:
        envelope = Envelope("e", "test", AT, "j", event)
        self.writer.send(encode(envelope, topic=self.topic))


@pytest.mark.parametrize("is_written", [False, True], ids=["away", "its answer is lost"])
def test_a_batch_waits_for_the_database_and_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_written: bool
) -> None:
    monkeypatch.setattr("gangline_mlflow.database._RETRY_S", 0.0)
    follower, tries = Follower(tmp_path), 0
    write = follower.runs.table.write

    def fail_first(*changes: Any) -> None:
        nonlocal tries
        tries += 1
        if tries > 1 or is_written:
            write(*changes)
        if tries == 1:
            raise DatabaseAway("server closed the connection unexpectedly")

    monkeypatch.setattr(follower.runs.table, "write", fail_first)
    follower.release(4.0)
    follower.runs._turn(1.0)
    assert follower.runs.table.usage(["j"])["j"].gpu_seconds == {"": 4.0}
    assert set(follower.sent) == {4.0}
    assert sum(follower.runs.table.positions().values()) == 1


@pytest.mark.parametrize("place", ["read", "write"])
def test_an_event_that_raises_is_skipped_and_the_others_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    follower = Follower(tmp_path)
    read, write = job_runs.take, follower.runs.table.write

    def take(changes: Changes, models: dict[str, str], event: Event, at: datetime) -> None:
        if place == "read" and getattr(event, "job_id", "") == "bad":
            raise OverflowError("too large")
        read(changes, models, event, at)

    def keep(changes: Changes, *others: Any) -> None:
        if place == "write" and "bad" in changes:
            raise OverflowError("too large")
        write(changes, *others)

    monkeypatch.setattr(job_runs, "take", take)
    monkeypatch.setattr(follower.runs.table, "write", keep)
    for gpu_s, job_id in ((4.0, "j"), (1.0, "bad"), (8.0, "j")):
        follower.release(gpu_s, job_id)
    with capture_logs() as logged:
        follower.runs._turn(1.0)
    assert follower.runs.table.usage(["j", "bad"])["j"].gpu_seconds == {"": 12.0}
    assert sum(follower.runs.table.positions().values()) == 3
    (poison,) = (line for line in logged if line["log_level"] == "critical")
    assert (poison["event"], poison["offset"]) == ("poison record skipped", 1)
    assert "OverflowError" in poison["trace"]
    follower.release(1.0)
    follower.runs._turn(1.0)
    assert follower.sent[-1] == 13.0


def test_an_error_of_the_database_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower(tmp_path)

    def broken(*_: Any) -> None:
        raise sa.exc.ProgrammingError("INSERT", {}, Exception("no such table"))

    monkeypatch.setattr(follower.runs.table, "write", broken)
    follower.release(4.0)
    with pytest.raises(sa.exc.ProgrammingError):
        follower.runs._turn(1.0)
    assert follower.runs.table.positions() == {}
