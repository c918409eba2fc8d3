"""Points on their way to SQL, over the bus in memory; over Kafka they are in tests/integration."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import cast

import pytest

pytest.importorskip("sqlalchemy")

from gangline_bus.codec import encode
from gangline_bus.memory import Broker
from gangline_bus.ports import BusError, OutRecord, Record, Writer
from gangline_bus.topics import TopicNames
from gangline_mlflow.artifacts import Artifacts
from gangline_mlflow.database import DatabaseAway, patiently
from gangline_mlflow.history import Histories
from gangline_mlflow.latest import Latest, LatestTable
from gangline_mlflow.parts import Parts
from gangline_mlflow.points import NotSettledError, Points
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.metrics import MetricLogged

KEY = ("r1", "loss")


class Table:
    """Takes what is written; `before` runs first, and may wait or raise."""

    def __init__(self) -> None:
        self.rows: Latest = {}
        self.positions: dict[int, int] = {}
        self.before: Callable[[], object] = lambda: None

    def write(self, latest: Latest, positions: dict[int, int]) -> None:
        self.before()
        self.rows.update(latest)
        self.positions.update(positions)


class Log:
    """Points of run r1 on a bus, and a reader of them that does not follow by itself."""

    def __init__(self) -> None:
        names = TopicNames("")
        broker = Broker()
        bus = broker.connect("mlflow")
        bus.create_topics(names.settings())
        self.table = Table()
        parts = Parts(bus, names, cast("Histories", None), cast("Artifacts", None), lambda: None)
        self.points = Points(parts, cast("LatestTable", self.table))
        self.reader = bus.reader("test")
        self.reader.assign(dict.fromkeys(names.places(bus, Topic.METRICS), 0))

    def log(self, step: int, value: float) -> None:
        """Accept a point and read it back."""
        self.points.accept("nlp", "r1", [("loss", step, 1000, value)]).result(5)
        self.points._take(self.reader.poll(10, 1.0))


def test_a_value_that_could_not_be_written_stays_unless_a_newer_one_comes() -> None:
    log = Log()

    def fail() -> None:
        log.log(3, 0.3)
        raise OSError("the database is locked")

    log.log(7, 0.7)
    log.table.before = fail
    with pytest.raises(OSError, match="locked"):
        log.points.flush()
    log.table.before = lambda: None
    log.points.settle_latest()
    assert log.table.rows == {KEY: (7, 1000, 0.7, False)}


def test_a_database_that_comes_back_gets_what_was_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangline_mlflow.database._RETRY_S", 0.0)
    log, tries = Log(), 0

    def away() -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise DatabaseAway("connection refused")

    log.log(7, 0.7)
    log.table.before = away
    with pytest.raises(NotSettledError, match="database"):
        log.points.settle_latest()
    patiently(log.points.flush)
    assert log.table.rows == {KEY: (7, 1000, 0.7, False)}
    assert tries == 4


def test_a_database_that_stays_away_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangline_mlflow.database._RETRY_S", 0.0)
    monkeypatch.setattr("gangline_mlflow.database._AWAY_S", -1.0)
    log = Log()

    def away() -> None:
        raise DatabaseAway("connection refused")

    log.log(7, 0.7)
    log.table.before = away
    with pytest.raises(DatabaseAway):
        patiently(log.points.flush)


def test_a_caller_that_gives_up_does_not_disturb_the_delivery() -> None:
    log = Log()
    sent: list[Callable[[BusError | None], None]] = []
    log.points._writer = cast("Writer", SimpleNamespace(send=lambda _, done: sent.append(done)))
    for error in (None, BusError("the broker is away")):
        accepted = log.points.accept("nlp", "r1", [("loss", 1, 1000, 0.5)])
        assert not accepted.cancel()
        sent.pop()(error)
        assert accepted.exception(5) is error


def test_a_reader_waits_for_a_write_in_progress() -> None:
    log = Log()
    begun, end = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert end.wait(30)

    log.log(1, 0.5)
    log.table.before = wait
    writer = threading.Thread(target=log.points.flush)
    writer.start()
    assert begun.wait(30)
    seen: list[Latest] = []

    def read() -> None:
        log.points.settle_latest()
        seen.append(dict(log.table.rows))

    reader = threading.Thread(target=read)
    reader.start()
    reader.join(0.2)  # it returns here only if it does not wait
    end.set()
    reader.join(30)
    writer.join(30)
    assert seen == [{KEY: (1, 1000, 0.5, False)}]


def test_own_points_count_once_they_are_acknowledged_whether_read_back_or_not() -> None:
    log = Log()
    log.points.accept("nlp", "r1", [("loss", 1, 1000, 0.5)]).result(5)
    log.points.settle_latest()
    assert log.table.rows == {KEY: (1, 1000, 0.5, False)}
    log.table.rows.clear()
    log.points._take(log.reader.poll(10, 1.0))
    log.points.settle_latest()
    assert log.table.rows == {}


def test_points_that_are_read_before_the_acknowledgement_are_there() -> None:
    log = Log()
    genuine = log.points._writer
    kept: list[Callable[[BusError | None], None]] = []

    def send(record: OutRecord, done: Callable[[BusError | None], None]) -> None:
        genuine.send(record)
        kept.append(done)

    log.points._writer = cast("Writer", SimpleNamespace(send=send))
    for error in (None, BusError("no answer in time")):  # also one that is there all the same
        log.table.rows.clear()
        accepted = log.points.accept("nlp", "r1", [("loss", len(kept), 1000, 0.5)])
        if error is not None:
            kept[-1](error)
        log.points._take(log.reader.poll(10, 1.0))
        if error is None:
            kept[-1](error)
        assert accepted.exception(5) is error
        log.points.settle_latest()
        assert log.table.rows == {KEY: (len(kept) - 1, 1000, 0.5, False)}


def test_of_a_batch_the_newest_value_of_each_name_counts() -> None:
    log = Log()
    points = [("loss", 2, 5, 0.1), ("acc", 1, 5, 0.5), ("loss", 1, 9, 0.9), ("loss", 2, 5, 0.3)]
    log.points.accept("nlp", "r1", points).result(5)
    log.points.accept("nlp", "r1", [("acc", 1, 6, math.nan)]).result(5)
    log.points.settle_latest()
    assert log.table.rows == {KEY: (2, 5, 0.3, False), ("r1", "acc"): (1, 6, 0.0, True)}


def test_points_that_cannot_be_taken_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_event: object) -> None:
        raise OverflowError("a step")

    failing, sound = Log(), Log()
    event = MetricLogged(
        run_id="r1", team="nlp", name=("loss",), step=(1,), time_ms=(1000,), value=(0.5,)
    )
    envelope = Envelope("e1", "test", datetime.now(UTC), "r1", event)
    sent = encode(envelope, topic="gangline.metrics")
    record = Record("gangline.metrics", 0, 4, sent.key, sent.value, sent.headers, 0)
    monkeypatch.setattr(failing.points, "_fold", refuse)
    failing.points._take([record])
    failing.points.flush()
    assert (failing.table.rows, failing.table.positions) == ({}, {0: 5})
    sound.points._take([record])
    sound.points.flush()
    assert sound.table.rows == {KEY: (1, 1000, 0.5, False)}
