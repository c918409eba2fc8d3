"""All points of runs by the genuine tracker: pages join without a gap, teams see their own."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
import pytest

from gangline_gateway.run_points import PointQuery, PointReader
from gangline_gateway.sql_parts import CursorError
from gangline_schemas.events.metrics import MetricLogged
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.mlflow_workspace import mlflow_run_id
from support.builders.gangs import reported
from support.harnesses.tracker_process import TrackerProcess, running_tracker
from support.waiting import wait_until

A, B = "a" * 32, "b" * 32
STEPS = 25
JOB = PointQuery("job", {"job-a": "nlp"})
LOGGED = PointQuery("mlflow", {A: "", B: ""}, teams=frozenset({"nlp"}))


def steps(run: str, attempt: int, rank: int, first: int, value: float) -> WorkerStep:
    count = STEPS - first
    metrics = {"loss": (value,) * count, "lr": (value,) * count}
    time_ms = tuple(range(1000 + first, 1000 + STEPS))
    of = {"attempt": attempt, "rank": rank, "time_ms": time_ms}
    return reported(run, range(first, STEPS), metrics, **of)


def logged(
    run: str, team: str, values: dict[int, float | None], name: str = "loss"
) -> MetricLogged:
    return MetricLogged(
        run_id=run,
        team=team,
        name=(name,) * len(values),
        step=(0,) * len(values),
        time_ms=tuple(values),
        value=tuple(values.values()),
    )


@pytest.fixture(scope="module")
def tracker(
    kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TrackerProcess]:
    """A job with two attempts of two ranks, and a run of MLflow in each of two teams."""
    with running_tracker(kafka_bootstrap, tmp_path_factory.mktemp("tracker")) as process:
        for rank in range(2):
            process.send(steps("job-a", 1, rank, 0, 1.0 + rank), "job-a")
            process.send(steps("job-a", 2, rank, 20, 3.0 + rank), "job-a")
        mine = {time: float(time) for time in range(10)}
        process.send(logged(A, "nlp", mine), A)
        process.send(logged(A, "nlp", {**mine, 10: None}), A)
        process.send(logged(B, "vision", {1: 1.0}), B)
        both = mlflow_run_id("job-a")  # `loss` is reported, too
        process.send(logged(both, "nlp", {5: 5.0, 6: None}, "eval"), both)
        process.send(logged(both, "nlp", {5: 5.0}), both)
        process.send(logged(both, "vision", {7: 7.0}, "eval"), both)
        process.settled()
        client = process.client()
        for table, rows in (("steps", 2 * 2 * (STEPS + 5)), ("metric_points", 26)):
            sql = f"SELECT count() FROM {table}"
            wait_until(table, lambda sql=sql, n=rows: client.query(sql).result_rows == [(n,)])
        yield process


@pytest.fixture
def points(tracker: TrackerProcess) -> PointReader:
    return PointReader(tracker.client("service"))


def pages(points: PointReader, wanted: PointQuery) -> list[list[dict[str, Any]]]:
    found = []
    while True:
        page = points.page(wanted)
        if wanted.format == "parquet":
            found.append(pq.read_table(io.BytesIO(page.body)).to_pylist())
        else:
            found.append([json.loads(line) for line in page.body.splitlines()])
        if page.cursor is None:
            return found
        wanted = replace(wanted, cursor=page.cursor)


def test_of_each_step_the_newest_attempt_counts_and_of_its_ranks_the_lowest(
    points: PointReader,
) -> None:
    rows, others = pages(points, JOB)
    keys = [(row["run_id"], row["name"], row["step"]) for row in rows]
    assert keys == [("job-a", name, step) for name in ("loss", "lr") for step in range(STEPS)]
    assert {(row["attempt"], row["value"]) for row in rows[:20]} == {(1, 1.0)}
    assert {(row["attempt"], row["value"]) for row in rows[20:STEPS]} == {(2, 3.0)}
    assert rows[3]["time_ms"] == 1003
    logged = [(row["run_id"], row["name"], row["time_ms"], row["attempt"]) for row in others]
    assert logged == [("job-a", "eval", 5, 0), ("job-a", "eval", 6, 0)]


@pytest.mark.parametrize("limit", [1, 7, 119, 120])
def test_pages_join_without_a_gap_in_both_formats(points: PointReader, limit: int) -> None:
    for wanted in (JOB, LOGGED):
        whole = [row for part in pages(points, wanted) for row in part]
        for form in ("parquet", "jsonl"):
            parts = pages(points, replace(wanted, limit=limit, format=form))
            joined = [row for part in parts for row in part]
            for row in joined:  # JSON has no NaN, and 1 for 1.0
                row["value"] = float("nan") if row["value"] is None else float(row["value"])
            assert [str(row) for row in joined] == [str(row) for row in whole]


def test_a_repeated_point_is_one_and_another_team_s_are_none(points: PointReader) -> None:
    (rows,) = pages(points, LOGGED)
    assert [(row["run_id"], row["time_ms"]) for row in rows] == [(A, n) for n in range(11)]
    assert str(rows[10]["value"]) == "nan"
    assert [len(p) for p in pages(points, replace(JOB, runs={"job-a": "vision"}))] == [0, 1]


def test_points_of_one_step_and_time_are_pages_too(
    tracker: TrackerProcess, points: PointReader
) -> None:
    run, count = "c" * 32, 40
    values: tuple[float | None, ...] = (None, *(n / 3 for n in range(-20, 19)))
    same = (0,) * count
    event = MetricLogged(
        run_id=run, team="nlp", name=("v",) * count, step=same, time_ms=same, value=values
    )
    tracker.send(event, run)
    client, sql = tracker.client(), f"SELECT count() FROM metric_points WHERE run_id = '{run}'"
    wait_until("rows", lambda: client.query(sql).result_rows == [(count,)])
    found = pages(points, replace(LOGGED, runs={run: ""}, limit=7, format="parquet"))
    assert [len(page) for page in found] == [7, 7, 7, 7, 7, 5]
    rows = [row["value"] for page in found for row in page]
    assert sorted(map(str, rows)) == sorted(str(v).replace("None", "nan") for v in values)


def test_some_metrics_from_a_step_on(points: PointReader) -> None:
    rows, others = pages(points, replace(JOB, names=("lr",), first=20))
    assert others == []
    assert [(row["name"], row["step"]) for row in rows] == [("lr", n) for n in range(20, STEPS)]


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "WyJhIl0", "WzAsIlx1ZDgwMCIsImIiLDFd", "WzEsMiwzXQ",
     "WyJhIiwiYiIsOTk5OTk5OTk5OTk5OTk5OTk5OTk5XQ"],
)  # fmt: skip
def test_what_is_no_cursor(points: PointReader, cursor: str) -> None:
    with pytest.raises(CursorError):
        points.page(replace(JOB, cursor=cursor))
