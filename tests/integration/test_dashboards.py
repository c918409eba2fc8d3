"""Every query of the dashboards against the real engine, through the address that Grafana uses."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from gangline_schemas.base import Event
from gangline_schemas.catalog import event_types
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.events.scheduling import JobQueued, JobStateChanged
from gangline_schemas.job import JobState
from gangline_schemas.mlflow_workspace import mlflow_run_id
from support.builders.gangs import reported
from support.grafana import ALL, Query, Screen, queries
from support.harnesses.clickhouse_clients import go_answers, node_answers
from support.harnesses.tracker_process import TrackerProcess, running_tracker
from support.waiting import wait_until

ROOT = Path(__file__).parents[2]
METRICS = ("loss", "lr", "grad_norm", "tokens_per_s", "step_s", "data_wait_s", "mfu")
RUN, TEAM = "llama-sft-7k2p", "nlp"
SLOW = "the store is slow: a failure is expected to cost 41 min of work"
SLOW_PANEL = "checkpoints: Saves held back by a slow store"
QUERIES = {str(asked): asked for asked in queries()}
CHOSEN: Mapping[str, Any] = {
    "team": [TEAM, "other"],
    "run": RUN,
    "metric": "loss",
    "prices": "a100 = 1, h100 = 2.5",
}


def example(event_type: str, **changes: Any) -> Event:
    """The golden example of a type."""
    text = (ROOT / "schemas" / "examples" / f"{event_type}.json").read_text()
    return event_types()[event_type].model_validate(json.loads(text) | changes)


def screen(**chosen: Any) -> Screen:
    """Two hours around now."""
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    return Screen(now - hour, now + hour, variables=dict(CHOSEN) | chosen)


def send_story(tracker: TrackerProcess) -> None:
    """Something for each panel: runs in several states, failures, saves, usage, nodes, alerts."""
    now = datetime.now(UTC)
    now_ms = time.time_ns() // 1_000_000
    submitted = example("job.submitted")
    assert isinstance(submitted, JobSubmitted)
    for job in (RUN, "waits", "done"):
        tracker.send(example("job.submitted", job_id=job), job)
        queued = JobQueued(job_id=job, spec=submitted.spec, user="ada", submitted_at=now)
        tracker.send(queued, job)
    for job, states in (
        (RUN, (JobState.PENDING, JobState.RUNNING)),
        ("done", (JobState.PENDING, JobState.RUNNING, JobState.FAILED)),
    ):
        for previous, state in pairwise(states):
            changed = JobStateChanged(job_id=job, attempt=1, previous=previous, state=state)
            tracker.send(changed, job)
    tracker.send(
        reported(
            RUN, (1, 2), dict.fromkeys(METRICS, (1.0, 2.0)), team=TEAM, time_ms=(now_ms, now_ms + 1)
        ),
        RUN,
    )
    moment = now.isoformat()
    sample = {"read_at": moment, "gpus": [{"index": 0, "power_w": 650.0, "sm_percent": 91.0}]}
    speeds = ("disk_read", "disk_write", "network_receive", "network_send")
    sample |= {f"{name}_mb_s": 120.5 for name in speeds}
    lines = [{"time_ms": now_ms, "stream": "stdout", "text": "hello"}]
    for name, changes in (
        ("node.admitted", {}),
        ("gang.allocated", {}),
        ("gang.released", {}),
        ("worker.log", {"lines": lines}),
        ("gang.failed", {"failed_at": moment}),
        ("incident.closed", {"failed_at": moment, "closed_at": moment}),
        ("gang.troubled", {"job_id": RUN}),
        ("checkpoint.committed", {}),
        ("checkpoint.abandoned", {}),
        ("checkpoint.interval.advised", {"limited_by": "storage", "risk": SLOW}),
        ("usage.charged", {"allocated_at": moment, "released_at": moment}),
        ("worker.heartbeat", {"sent_at": moment, "sequence": 0, "use": sample}),
        ("node.failed", {}),
        ("alert.raised", {"raised_at": moment}),
        ("team.configured", {}),
        ("part.announced", {}),
        ("metric.logged", {"run_id": mlflow_run_id(RUN), "time_ms": [now_ms, now_ms]}),
    ):
        tracker.send(example(name, **changes), RUN)
    tracker.settled()


@cache
def http() -> httpx.Client:
    """One for all queries: each new one reads all certificates of authorities again."""
    return httpx.Client(timeout=30)


def ask(tracker: TrackerProcess, sql: str, who: str = "admin", **chosen: Any) -> dict[str, Any]:
    answer = http().post(
        tracker.url,
        params={"database": "gangline", "default_format": "JSON", "max_execution_time": "60"},
        content=screen(**chosen).expanded(sql),
        auth=("grafana", tracker.tokens[who]),
    )
    assert answer.status_code == 200, f"{sql}\n{answer.text}"
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture(scope="module")
def empty(tracker_process: TrackerProcess) -> dict[str, str]:
    """What each query said to a store without a row, and nothing chosen; "" for an answer."""
    found = {}
    for name, asked in QUERIES.items():
        try:
            ask(tracker_process, asked.sql, team=ALL, run="", metric="", prices="")
            found[name] = ""
        except AssertionError as error:
            found[name] = str(error)
    return found


@pytest.fixture(scope="module")
def tracker_process(
    kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TrackerProcess]:
    with running_tracker(kafka_bootstrap, tmp_path_factory.mktemp("dashboards")) as process:
        yield process


@pytest.fixture(scope="module")
def tracker(tracker_process: TrackerProcess, empty: dict[str, str]) -> TrackerProcess:
    """The tracker with the story in its tables; `empty` comes first."""
    send_story(tracker_process)
    tables = ("steps", "logs", "heartbeats", "usage", "checkpoints", "runs", "incidents")
    counts = " UNION ALL ".join(
        f"SELECT count() AS n FROM {table}" for table in (*tables, "metric_points")
    )
    wait_until(
        "the rows",
        lambda: all(int(row["n"]) for row in ask(tracker_process, counts)["data"]),
    )
    return tracker_process


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_a_query_gets_the_columns_that_are_drawn(tracker: TrackerProcess, name: str) -> None:
    asked = QUERIES[name]
    answer = ask(tracker, asked.sql)
    types = {column["name"]: column["type"] for column in answer["meta"]}
    check_columns(asked, types)
    assert answer["data"], "the panel is empty"
    every = ask(tracker, asked.sql, team=ALL)
    assert len(every["data"]) >= len(answer["data"])


def check_columns(asked: Query, types: Mapping[str, str]) -> None:
    """Each kind of panel needs columns of its own."""
    kinds = list(types.values())
    if asked.kind in {"timeseries", "state-timeline", "annotation"}:
        assert types["time"].startswith("DateTime"), types
    if asked.kind == "timeseries":
        assert any("Float" in kind or "Int" in kind for kind in kinds), types
        assert sum("String" in kind for kind in kinds) <= 1, "one name for a series"
        assert not any("UInt64" in kind for kind in kinds), types
    if asked.kind in {"stat", "variable"}:
        assert len(kinds) == 1
    if asked.kind == "bargauge":
        assert "String" in kinds[0]
        assert "Float64" in kinds[1]
    if asked.kind == "xychart":
        assert list(types) == ["run", "step", "value"]
        assert kinds[1:] == ["Float64", "Float64"]
    if asked.kind == "logs":
        assert {"timestamp", "body", "level"} <= set(types)


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_an_empty_store_is_no_error(empty: dict[str, str], name: str) -> None:
    assert empty[name] == ""


@pytest.mark.parametrize(
    "client", [pytest.param(go_answers, marks=pytest.mark.nightly), node_answers]
)
def test_clients_of_other_languages_read_every_query(tracker: TrackerProcess, client: Any) -> None:
    """clickhouse-go is the client inside Grafana's plugin, with the same options."""
    texts = {name: screen().expanded(asked.sql) for name, asked in QUERIES.items()}
    answers = client(tracker.url, tracker.tokens["admin"], [*texts.values(), "DROP TABLE steps"])
    assert "ACCESS_DENIED" in answers.pop()["error"]
    for (name, asked), answer in zip(QUERIES.items(), answers, strict=True):
        assert not answer["error"], name
        assert answer["rows"], name
        check_columns(asked, dict(answer["types"]))


def test_cost_is_gpu_hours_by_the_price_of_their_model(tracker: TrackerProcess) -> None:
    sql = QUERIES["teams: Cost of teams"].sql
    for prices, cost in (("a100=1, h100=2.5", 10.0), ("a100=1", 0.0), ("h100=", 0.0)):
        [row] = ask(tracker, sql, prices=prices)["data"]
        assert (row["team"], row["cost"]) == (TEAM, cost), "4 GPUs for an hour"


def test_of_steps_that_were_trained_again_the_later_attempt_is_drawn(
    tracker: TrackerProcess,
) -> None:
    for attempt, count in ((2, 30), (1, 40)):
        steps = tuple(range(1, count + 1))
        now_ms = (time.time_ns() // 1_000_000,) * count
        metrics = {"loss": (float(attempt),) * count}
        again = reported("again", steps, metrics, team=TEAM, attempt=attempt, time_ms=now_ms)
        tracker.send(again, "again")
    tracker.settled()
    sql = QUERIES["tracking: $metric by step"].sql

    def drawn() -> dict[int, float]:
        return {row["step"]: row["value"] for row in ask(tracker, sql, run="again")["data"]}

    wait_until("all steps", lambda: len(drawn()) == 40)
    assert drawn() == {step: 2.0 if step <= 30 else 1.0 for step in range(1, 41)}


def test_variables_offer_what_there_is(tracker: TrackerProcess) -> None:
    wanted = {"team": TEAM, "run": RUN, "metric": "loss"}
    seen = set()
    for asked in QUERIES.values():
        if asked.kind == "variable":
            name = asked.title.removeprefix("variable ")
            found = {next(iter(row.values())) for row in ask(tracker, asked.sql)["data"]}
            assert wanted[name] in found
            seen.add(name)
    assert seen == set(wanted)


def test_a_viewer_of_another_team_sees_no_rows(tracker: TrackerProcess) -> None:
    open_to_all = {"cluster: Nodes", "cluster: Events of nodes"}
    for name, asked in QUERIES.items():
        if asked.kind in {"table", "logs", "timeseries", "bargauge"} and name not in open_to_all:
            rows = ask(tracker, asked.sql, who="vision", team=ALL)["data"]
            assert not rows, name


def test_a_slow_store_is_shown_until_saves_are_not_held_back_any_more(
    tracker: TrackerProcess,
) -> None:
    sql = QUERIES[SLOW_PANEL].sql
    [row] = ask(tracker, sql)["data"]
    assert (row["job_id"], row["risk"]) == (RUN, SLOW)
    tracker.send(example("checkpoint.interval.advised"), RUN)
    tracker.settled()
    wait_until("the newer advice", lambda: not ask(tracker, sql)["data"])
