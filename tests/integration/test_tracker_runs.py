"""Runs in the tracker's database: lists, filters, comparison, curves, logs, checkpoints."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_gateway import curve_sql
from gangline_gateway.comparison import compare
from gangline_gateway.curves import CurveError, CurveQuery, CurveReader
from gangline_gateway.history import History, RunFilter
from gangline_gateway.log_pages import LogFilter
from gangline_gateway.parallel import parallel
from gangline_gateway.resources import ResourceReader
from gangline_gateway.run_list import page_of
from gangline_gateway.sql_parts import CursorError
from gangline_gateway.steps_at import Attempt
from gangline_schemas.api.runs import Resources, Run, RunPage
from gangline_schemas.events.metrics import MetricLogged
from gangline_schemas.events.requests import RunTagged
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.gpu_prices import GpuPrices
from gangline_schemas.mlflow_workspace import mlflow_run_id
from support.builders.gangs import reported
from support.fixtures.tracker import BASE, BASE_MS, logged, number, send_logged, step_event
from support.harnesses.tracker_process import TrackerProcess
from support.waiting import wait_until

TEXTS = int(os.environ.get("GANGLINE_FILTER_TEXTS", "15"))
OWN_A = {"job-a": "nlp"}
OWN = {"job-a": "nlp", "job-b": "nlp"}


def listed(
    history: History,
    wanted: RunFilter | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> RunPage:
    """A page of the runs of jobs."""
    wanted = wanted or RunFilter()
    return page_of(history.runs(wanted, limit=limit, cursor=cursor), wanted, limit)


def test_runs_are_listed_page_by_page(history: History) -> None:
    first = listed(history, limit=2)
    assert [run.run_id for run in first.runs] == ["job-c", "job-b"]
    second = listed(history, limit=2, cursor=first.cursor)
    assert ([run.run_id for run in second.runs], second.cursor) == (["job-a"], None)
    nlp = RunFilter(teams=frozenset({"nlp"}), states=("succeeded",), name_contains="eco")
    assert [run.run_id for run in listed(history, nlp).runs] == ["job-b"]
    assert listed(history, RunFilter(submitted_before=BASE)).runs == []
    with pytest.raises(CursorError):
        listed(history, cursor="x' OR 1.1")
    found = history.run("job-a")
    assert found is not None
    run = found.run
    assert (run.state, run.gpu_seconds, run.submitted_at) == ("succeeded", 20.0, BASE)
    assert history.run("job-a", frozenset({"vision"})) is None


def test_curves_follow_the_newest_attempt_and_are_thinned(curves: CurveReader) -> None:
    (curve,) = curves.curves(CurveQuery(OWN_A, ["loss"]))
    assert [point.step for point in curve.points] == list(range(100))
    assert curve.points[5].value == pytest.approx(1 / 6)
    assert curve.points[95].value == pytest.approx(5 / 96)
    thin = curves.curves(CurveQuery(OWN, ["loss", "lr"], points=10))
    assert [len(curve.points) for curve in thin] == [10] * 4
    assert thin[0].points[-1].value == curve.points[99].value, "of the last step, not a mean"
    bucket = thin[0].points[0]
    assert (bucket.first_step, bucket.step, bucket.low, bucket.high) == (0, 9, 0.1, 1.0)
    assert curves.curves(CurveQuery({"nobody": "nlp"}, ["loss"])) == []
    assert curves.names(OWN_A) == ["acc", "loss", "lr"]
    assert curves.names(OWN_A, system=True) == ["system/n1/cpu_utilization_percentage"]


def test_points_that_a_job_logged_through_mlflow_are_points_of_its_curves(
    curves: CurveReader, history: History
) -> None:
    acc, cpu = curves.curves(CurveQuery(OWN_A, ["acc", "system/n1/cpu_utilization_percentage"]))
    assert [(p.step, p.value, p.time) for p in acc.points] == [(0, 0.5, BASE), (50, 0.75, BASE)]
    assert [(p.step, p.value) for p in cpu.points] == [(BASE_MS // 1000, 40.0)]
    assert curves.latest(OWN_A)["acc"]["job-a"].value == 0.75
    of_mlflow = {mlflow_run_id("job-a"): "nlp"}
    assert curves.names(of_mlflow) == ["acc"]
    assert curves.names({mlflow_run_id("job-a"): "vision"}) == []
    found = listed(history, RunFilter(where="metrics.acc > 0.7 and metrics.loss < 9"))
    assert [run.run_id for run in found.runs] == ["job-a"]


def test_many_runs_are_read_at_once(history: History, curves: CurveReader) -> None:
    runs = {f"a-run-with-a-long-name-{number}": "nlp" for number in range(99)} | OWN_A
    assert [found.run.run_id for found in history.some_runs([*runs])] == ["job-a"]
    assert [curve.run_id for curve in curves.curves(CurveQuery(runs, ["loss"]))] == ["job-a"]


def test_a_step_that_was_logged_and_reported_counts_once(
    tracker: TrackerProcess, curves: CurveReader
) -> None:
    tracker.send(step_event("mixed", "nlp", 0), "mixed")
    send_logged(tracker, logged("mixed", ("loss", 5, 9.0), ("loss", 120, 9.5), ("loss", 120, 9.4)))
    client = tracker.client()
    for table, run, rows in (("steps", "mixed", 20), ("metric_points", mlflow_run_id("mixed"), 3)):
        sql = f"SELECT count() FROM {table} WHERE run_id = '{run}'"
        wait_until(table, lambda sql=sql, rows=rows: number(client, sql) == rows)
    (loss,) = curves.curves(CurveQuery({"mixed": "nlp"}, ["loss"]))
    assert [point.step for point in loss.points] == [*range(10), 120]
    assert loss.points[5].value == pytest.approx(1 / 6)
    assert loss.points[-1].value == 9.5, "of equal steps and times the greatest, as in MLflow"


def test_many_curves_have_fewer_points_each(
    curves: CurveReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline_gateway.curves.ALL_POINTS", 20)
    found = curves.curves(CurveQuery(OWN, ["loss", "lr"]))
    assert [len(curve.points) for curve in found] == [5] * 4


def test_curves_over_a_part_of_an_axis(curves: CurveReader) -> None:
    asked = CurveQuery(OWN, ["loss"], first=20, last=29)
    for curve in curves.curves(asked):
        assert [point.step for point in curve.points] == list(range(20, 30))
    by_time = replace(asked, axis="time", first=2.0, last=2.5)
    for curve in curves.curves(by_time):
        assert [(point.step, point.x) for point in curve.points] == [
            (step, pytest.approx(step / 10)) for step in range(20, 26)
        ], "each 0.1 s, from the first step on"
    with pytest.raises(CurveError, match="tokens"):
        curves.curves(replace(asked, axis="tokens"))
    (chosen, _) = curves.curves(CurveQuery(OWN, ["loss"], points=7, sampling="lttb"))
    assert (len(chosen.points), chosen.points[0].step, chosen.points[-1].step) == (7, 0, 99)


def test_curves_of_a_long_run_are_those_of_its_rows(
    tracker: TrackerProcess, curves: CurveReader
) -> None:
    """Read from roll-ups: of 2 attempts the newer counts, and of 2 ranks the lower."""
    runs = {"long": "nlp"}
    for attempt, rank, first in ((1, 0, 0), (2, 1, 2_000), (2, 0, 2_000)):
        for start in range(first, 5_000, 1_000):
            steps = range(start, start + 1_000)
            event = WorkerStep(
                run_id="long", team="nlp", attempt=attempt, rank=rank, step=tuple(steps),
                time_ms=tuple(BASE_MS + step for step in steps),
                metrics={"v": tuple(float(attempt * step + rank) for step in steps)},
            )  # fmt: skip
            tracker.send(event, "long")
    time_ms = (BASE_MS, BASE_MS + 4_500)
    tracker.send(reported("long", (0, 4_500), {"accuracy": (0.1, 0.2)}, time_ms=time_ms), "long")
    client = tracker.client()
    wait_until(
        "rows", lambda: number(client, "SELECT count() FROM steps WHERE run_id = 'long'") == 11_002
    )
    (curve,) = curves.curves(CurveQuery(runs, ["v"], points=25))
    assert [(p.first_step, p.step, p.value, p.low, p.high) for p in curve.points] == [
        (first, first + 199, k * (first + 199), k * first, k * (first + 199))
        for first in range(0, 5_000, 200)
        for k in (1 if first < 2_000 else 2,)
    ]
    (final,) = curves.latest(runs)["v"].values()
    assert (final.step, final.value, final.low, final.high) == (4_999, 9_998, 0, 9_998)
    (part,) = curves.curves(CurveQuery(runs, ["v"], axis="time", first=3.0, last=3.009))
    assert [(p.step, p.x) for p in part.points] == [
        (step, step / 1000) for step in range(3_000, 3_010)
    ], "seconds count from the first step, as the start of the run is not known"
    moments = {-1: None, 0: 0, 3_456: 3_456, 4_999: 4_999, 60_000: 4_999}
    for at_ms, step in moments.items():
        at = datetime.fromtimestamp((BASE_MS + at_ms) / 1000, UTC)
        first = {"long": Attempt("nlp", 1), "no-such-job": Attempt("nlp", 1)}
        assert curves.steps_at(first, at).get("long") == step
    second = {"long": Attempt("nlp", 2)}
    at = datetime.fromtimestamp((BASE_MS + 1_999) / 1000, UTC)
    assert curves.steps_at(second, at) == {}
    assert curves.steps_at({"long": Attempt("vision", 1)}, at) == {}


@pytest.mark.parametrize("width", [1, 7, 100, 200])
def test_curves_of_one_attempt_need_no_choice(tracker: TrackerProcess, width: int) -> None:
    where = "WHERE run_id IN ('job-a', 'job-b') AND team = 'nlp' AND attempt = 1"
    of_any, of_one = (
        tracker.client()
        .query(
            f"{curve_sql.buckets(where, width, logged=False, single=single)} ORDER BY 1, 2, step"
        )
        .result_rows
        for single in (False, True)
    )
    assert of_any == of_one != []


def test_runs_are_compared(history: History, curves: CurveReader) -> None:
    runs = history.some_runs(["job-b", "job-a", "nobody"])
    found = compare(runs, curves.latest(OWN), curves.curves(CurveQuery(OWN, ["loss"])))
    assert [run.run_id for run in found.runs] == ["job-b", "job-a"]
    assert [(d.field, d.values) for d in found.differences] == [
        ("hyperparameters.lr", {"job-b": 0.2, "job-a": 0.1})
    ]
    final = found.metrics["loss"]["job-a"]
    assert (final.step, final.value) == (99, pytest.approx(5 / 100))
    assert (final.low, final.high) == (pytest.approx(1 / 100), 1.0)


def test_resources_that_a_run_used(tracker: TrackerProcess, history: History) -> None:
    run, name = mlflow_run_id("job-b"), "system/x/cpu_utilization_percentage"
    odd = MetricLogged(  # a program may log anything to its own run
        run_id=run, team="nlp", name=(name,) * 2, step=(2**62, -(2**62)), time_ms=(1, 2),
        value=(1.0, 2.0),
    )  # fmt: skip
    tracker.send(odd, run)
    count = "SELECT count() FROM metric_points WHERE name LIKE 'system/x/%'"
    wait_until("points", lambda: number(tracker.client(), count) == 2)
    resources = ResourceReader(tracker.client("service"), GpuPrices.of({"h100": 3600.0}))
    assert resources.used(OWN) == {"job-a": Resources(cpu=40.0)}
    runs = [found.run for found in history.some_runs(["job-a", "job-b"])]
    (curve,) = resources.over_time(runs, 10)
    (point,) = curve.points
    assert (curve.run_id, point.time, point.cpu) == ("job-a", BASE, 40.0)
    assert (point.gpu_hours, point.cost) == (0.0, 0.0), "at the run's start"
    found = parallel(runs, CurveReader(tracker.client("service")).latest(OWN))
    assert [axis.name for axis in found.axes] == ["lr", "gpu_hours", "acc", "loss", "lr"]
    assert found.runs[0].values[:3] == [0.1, pytest.approx(20 / 3600), 0.75]
    assert found.runs[1].values[2] is None


def test_steps_that_only_mlflow_has(tracker: TrackerProcess, history: History) -> None:
    cpu, at = "cpu_utilization_percentage", BASE_MS // 1000
    points: list[tuple[str, int, float | None]] = [
        ("warm up", -2500, 1.0), ("warm up", -1500, 2.0), ("warm up", 10, 3.0),
        (f"system/{cpu}", 0, 80.0), (f"system/{cpu}", 2**62, 80.0),
        (f"system/n1/{cpu}", at, 10.0), (f"system/n1/{cpu}", at + 100, 20.0),
    ]  # fmt: skip
    send_logged(tracker, logged("job-n", *points))
    client, own = tracker.client("service"), {"job-n": "nlp"}
    curves = CurveReader(client)
    wait_until("points", lambda: curves.latest(own))
    for axis, points_asked in (("step", 500), ("step", 3), ("time", 3)):
        asked = CurveQuery(own, ["warm up"], points=points_asked, axis=axis)
        (curve,) = curves.curves(asked)
        assert {curve.points[0].low, curve.points[-1].high} == {1.0, 3.0}
    found = curves.curves(CurveQuery(own, [f"system/{cpu}", f"system/n1/{cpu}"], points=50))
    assert [len(curve.points) for curve in found] == [2, 2]
    (run,) = (found.run for found in history.some_runs(["job-a"]))
    run = run.model_copy(update={"run_id": "job-n"})
    (curve,) = ResourceReader(client, GpuPrices()).over_time([run], 200)
    assert [point.cpu for point in curve.points] == [10.0, 20.0]


def test_runs_are_found_by_the_tags_that_users_set(
    tracker: TrackerProcess, history: History
) -> None:
    theirs = RunTagged(job_id="job-b", team="vision", tags={"stage": "theirs"})
    tracker.send(theirs, "job-b")
    client = tracker.client()
    wait_until("tags", lambda: number(client, "SELECT count() FROM run_tags FINAL") == 3)

    def found(where: str) -> list[str]:
        return [run.run_id for run in listed(history, RunFilter(where=where)).runs]

    assert found("tags.stage = 'production' and metrics.loss < 9") == ["job-a"]
    assert found("tags.stage = 'theirs'") == [], "tags of another team do not count"
    assert found("tags.draft IS NULL and tags.stage IS NULL") == ["job-c", "job-b"]
    (run,) = (each.run for each in history.some_runs(["job-a"]))
    assert run.tags == {"stage": "production"}


def test_answers_show_the_first_tags_of_a_run(
    tracker: TrackerProcess, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags = {f"t{n}": "x" for n in range(5)}
    tracker.send(RunTagged(job_id="job-c", team="vision", tags=tags), "job-c")
    client = tracker.client()
    wait_until("tags", lambda: number(client, "SELECT count() FROM run_tags FINAL") == 8)
    monkeypatch.setattr("gangline_gateway.history.MAX_TAGS", 3)
    (run,) = (each.run for each in history.some_runs(["job-c"]))
    assert [*run.tags] == ["t0", "t1", "t2"]
    (found,) = listed(history, RunFilter(where="tags.t4 = 'x'")).runs
    assert found.run_id == "job-c"


def test_runs_have_costs_where_their_gpus_have_prices(tracker: TrackerProcess) -> None:
    client = tracker.client("service")
    assert [run.cost for run in listed(History(client)).runs] == [None] * 3, "no prices"
    priced = History(client, GpuPrices.of({"h100": 1800.0}))
    wanted = RunFilter(where="cost >= 10 and gpu_model = 'h100-80gb'", order_by=("cost DESC",))
    assert [(run.run_id, run.cost) for run in listed(priced, wanted).runs] == [("job-a", 10.0)]
    (run,) = (found.run for found in priced.some_runs(["job-b"]))
    assert (run.gpu_model, run.cost) == ("", None), "its node is not known"


def test_runs_are_filtered_and_ordered(history: History) -> None:
    def found(where: str, *order_by: str) -> list[str]:
        page = listed(history, RunFilter(where=where, order_by=order_by))
        return [run.run_id for run in page.runs]

    assert found("params.lr = '0.1' and metrics.loss < 2 and gpu_hours > 0.001") == ["job-a"]
    assert found("params.lr > 0.1 AND name LIKE '%e%'", "params.lr") == ["job-b", "job-c"]
    assert found("attempts >= 1 and metrics.nothing IS NOT NULL") == []
    assert found("metrics.nothing IS NULL and metrics.loss > 0 and metrics.lr > 0", "run_id") == [
        "job-a",
        "job-b",
        "job-c",
    ]
    assert found(r"name LIKE '%\'") == [], "a backslash is plain"
    assert found("team IN ('nlp') and gpu_hours < 1", "metrics.loss", "run_id") == [
        "job-a",
        "job-b",
    ]
    assert found("submitted_at >= '2026-05-04T00:01:00Z'") == ["job-c", "job-b"]
    assert found("tags.gangline.study = 'sweep-1' and tags.gangline.trial >= 3") == ["job-c"]
    assert found("tags.gangline.study IS NULL and tags.gangline.job != 'job-b'") == ["job-a"]
    assert found("tags.gangline.purpose IS NOT NULL") == []
    wanted = RunFilter(order_by=("metrics.nothing", "params.lr DESC"))
    pages, cursor = [], None
    while True:
        page = listed(history, wanted, limit=1, cursor=cursor)
        pages += [run.run_id for run in page.runs]
        cursor = page.cursor
        if cursor is None:
            break
    assert pages == ["job-c", "job-b", "job-a"]


@settings(max_examples=TEXTS, deadline=None)
@given(text=st.text(max_size=40))
def test_no_value_of_a_filter_is_sql(tracker: TrackerProcess, text: str) -> None:
    """Values and names are compared as they are, and the engine takes the query."""
    history = History(tracker.client("service"))
    quoted = text.replace("'", "''")
    known = listed(history).runs

    def check(where: str, expected: list[Run]) -> None:
        assert listed(history, RunFilter(where=where)).runs == expected

    named = [run for run in known if run.name == text]
    check(f"name = '{quoted}'", named)
    check(f"name IN ('{quoted}', 'nobody')", named)
    check(f"params.lr = '{quoted}'", [r for r in known if r.hyperparameters["lr"] == text])
    if not set(text) & set("`") and text:
        check(f"params.`{text}` IS NOT NULL", [r for r in known if text in r.hyperparameters])
        check(f"metrics.`{text}` IS NOT NULL", known if text in {"loss", "lr"} else [])


def test_logs_checkpoints_and_samples(tracker: TrackerProcess, history: History) -> None:
    lines: list[str] = []
    page = history.logs(LogFilter("job-a", "nlp"), limit=20)
    while page.lines:
        lines += [line.text for line in page.lines]
        page = history.logs(LogFilter("job-a", "nlp"), limit=20, cursor=page.cursor)
    assert lines == [f"line {n}" for n in range(50)]
    found = history.logs(LogFilter("job-a", "nlp", contains="LINE 4"))
    assert [line.text for line in found.lines] == ["line 4", *(f"line {n}" for n in range(40, 50))]
    tail = history.logs(LogFilter("job-a", "nlp", rank=0), tail=True, limit=3)
    assert [line.line for line in tail.lines] == [47, 48, 49]
    assert history.logs(LogFilter("job-a", "nlp", rank=7)).lines == []
    assert [(c.step, c.status, c.size_bytes) for c in history.checkpoints("job-a")] == [
        (20, "committed", 5),
        (10, "deleted", 5),
    ]
    samples = tracker.client("service").query(
        "SELECT gpu, utilization FROM gangline.node_samples WHERE node_id = 'node-1' "
        "AND time < {end:DateTime64(3)} ORDER BY gpu",
        parameters={"end": BASE + timedelta(seconds=1)},
    )
    assert samples.result_rows == [(0, 50.0), (1, 70.0)]
