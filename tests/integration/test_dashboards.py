"""Every query of the Grafana dashboard against the real engine, through the door Grafana uses."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gangline_schemas.base import Event
from gangline_schemas.catalog import event_types
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.events.scheduling import JobQueued, JobStateChanged
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.job import JobState
from support.harnesses.tracker_process import TrackerProcess, wait_until

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboards" / "gangline.json").read_text())
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"] if panel["type"] != "row"}
VARIABLES = {item["name"]: item["query"] for item in DASHBOARD["templating"]["list"]}
METRICS = ("loss", "lr", "grad_norm", "tokens_per_s", "step_s", "mfu")
RUN, TEAM = "llama-sft-7k2p", "nlp"
SLOW = "the store is slow: a failure is expected to cost 41 min of work"
SLOW_PANEL = "Saves held back by a slow store"


def example(event_type: str, **changes: Any) -> Event:
    """The golden example of a type."""
    text = (ROOT / "schemas" / "examples" / f"{event_type}.json").read_text()
    return event_types()[event_type].model_validate(json.loads(text) | changes)


def send_story(tracker: TrackerProcess) -> None:
    """Something for each panel: a run that runs, one that waits, a failure, usage, heartbeats."""
    now = datetime.now(UTC)
    now_ms = time.time_ns() // 1_000_000
    submitted = example("job.submitted")
    assert isinstance(submitted, JobSubmitted)
    for job in (RUN, "waits"):
        queued = JobQueued(job_id=job, spec=submitted.spec, user="ada", submitted_at=now)
        tracker.send(queued, job)
    states = (JobState.PENDING, JobState.RUNNING)
    changed = JobStateChanged(job_id=RUN, attempt=1, previous=states[0], state=states[1])
    tracker.send(changed, RUN)
    tracker.send(
        WorkerStep(
            run_id=RUN,
            team=TEAM,
            attempt=1,
            rank=0,
            step=(1, 2),
            time_ms=(now_ms, now_ms + 1),
            metrics=dict.fromkeys(METRICS, (1.0, 2.0)),
        ),
        RUN,
    )
    log = example("worker.log")
    lines = [{"time_ms": now_ms, "stream": "stdout", "text": "hello"}]
    tracker.send(example("worker.log", lines=lines), str(getattr(log, "job_id", RUN)))
    moment = now.isoformat()
    for name, changes in (
        ("gang.failed", {}),
        ("checkpoint.committed", {}),
        ("checkpoint.interval.advised", {"limited_by": "storage", "risk": SLOW}),
        ("usage.charged", {"allocated_at": moment, "released_at": moment}),
        ("worker.heartbeat", {"sent_at": moment}),
    ):
        tracker.send(example(name, **changes), RUN)
    tracker.settled()


@pytest.fixture(scope="module")
def tracker(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    process = TrackerProcess(kafka_bootstrap, tmp_path_factory.mktemp("dashboards"))
    try:
        process.start()
        send_story(process)
        wait_until(
            "the rows",
            lambda: all(
                ask(process, f"SELECT count() AS n FROM {table}")["data"][0]["n"] not in {0, "0"}
                for table in ("steps", "logs", "heartbeats", "usage", "checkpoints", "runs")
            ),
        )
        yield process
    finally:
        process.close()


def filled_in(sql: str) -> str:
    """The query as the plugin sends it, by its documentation of macros and variables."""
    start, end = int(time.time()) - 3600, int(time.time()) + 3600
    sql = re.sub(
        r"\$__timeFilter\((\w+)\)",
        rf"\1 >= toDateTime({start}) AND \1 <= toDateTime({end})",
        sql,
    )
    sql = re.sub(
        r"\$__timeInterval\((\w+)\)",
        r"toStartOfInterval(toDateTime(\1), INTERVAL 20 second)",
        sql,
    )
    sql = sql.replace("${team:singlequote}", f"'{TEAM}','other'")
    sql = sql.replace("${run:singlequote}", f"'{RUN}'")
    assert "$" not in sql, sql
    return sql


def ask(tracker: TrackerProcess, sql: str, who: str = "admin") -> dict[str, Any]:
    answer = httpx.post(
        tracker.url,
        params={"database": "gangline", "default_format": "JSON", "max_execution_time": "60"},
        content=filled_in(sql),
        auth=("grafana", tracker.tokens[who]),
        timeout=30,
    )
    assert answer.status_code == 200, f"{sql}\n{answer.text}"
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("title", sorted(PANELS))
def test_a_panel_gets_the_columns_that_it_draws(tracker: TrackerProcess, title: str) -> None:
    panel = PANELS[title]
    (target,) = panel["targets"]
    answer = ask(tracker, target["rawSql"])
    types = {column["name"]: column["type"] for column in answer["meta"]}
    if panel["type"] == "timeseries":
        assert types["time"].startswith("DateTime"), types
        assert any("Float" in kind for kind in types.values()), types
        assert any("String" in kind for kind in types.values()), "nothing to tell series by"
    if panel["type"] == "stat":
        assert len(types) == 1
    if panel["type"] == "logs":
        assert {"timestamp", "body", "level"} <= set(types)
    assert answer["data"], "the panel is empty"


@pytest.mark.parametrize("name", sorted(VARIABLES))
def test_variables_offer_what_there_is(tracker: TrackerProcess, name: str) -> None:
    answer = ask(tracker, VARIABLES[name])
    assert len(answer["meta"]) == 1
    values = {next(iter(row.values())) for row in answer["data"]}
    assert {"team": TEAM, "run": RUN}[name] in values


def test_a_viewer_of_another_team_sees_no_run(tracker: TrackerProcess) -> None:
    for title in ("Chosen runs", "Loss", "Logs", "Checkpoints", "Failures", SLOW_PANEL):
        assert ask(tracker, PANELS[title]["targets"][0]["rawSql"], who="vision")["data"] == []


def test_a_slow_store_is_shown_until_saves_are_not_held_back_any_more(
    tracker: TrackerProcess,
) -> None:
    sql = PANELS[SLOW_PANEL]["targets"][0]["rawSql"]
    [row] = ask(tracker, sql)["data"]
    assert (row["job_id"], row["risk"]) == (RUN, SLOW)
    tracker.send(example("checkpoint.interval.advised"), RUN)
    tracker.settled()
    wait_until("the newer advice", lambda: not ask(tracker, sql)["data"])


def test_panels_use_the_provisioned_data_source_and_their_own_ground() -> None:
    provisioned = yaml.safe_load((FOLDER / "provisioning/datasources/gangline.yaml").read_text())
    (source,) = provisioned["datasources"]
    used = {(p["datasource"]["uid"], p["datasource"]["type"]) for p in PANELS.values()}
    assert used == {(source["uid"], source["type"])}
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert max(x for x, _ in cells) < 24
