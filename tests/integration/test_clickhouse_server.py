"""The tracker's statements to a ClickHouse server, over HTTP; no real server is at hand here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client

from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.mlflow_workspace import mlflow_run_id
from gangline_tracker.engine import Engine, EngineSettingsError, EngineUnavailable
from gangline_tracker.ingest import LOGS
from gangline_tracker.migrate import STALE_S, locked, migrate, missing_roll_ups, statements
from gangline_tracker.sink import ClickHouseSink
from support.harnesses.tracker_process import TrackerProcess
from support.harnesses.zookeeper import EmbeddedZooKeeper
from support.waiting import wait_until

ROOT = Path(__file__).parents[2]
ROWS = pa.table(
    {
        "team": ["nlp"], "job_id": ["a"], "attempt": [1], "rank": [0], "node_id": ["n"],
        "line": [1], "time": pa.array([0], pa.timestamp("ms", tz="UTC")), "stream": ["stdout"],
        "text": ["hello"], "partition": [3], "offset": [41],
        "ingested": pa.array([0], pa.timestamp("s", tz="UTC")),
    }
)  # fmt: skip


class Server:
    """A process that stands for a server, and what it was asked."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self.url = f"http://127.0.0.1:{port}"

    def asked(self) -> list[tuple[str, dict[str, str]]]:
        lines = (self._folder / "asked").read_text().splitlines()
        return [(found["sql"], found["settings"]) for found in map(json.loads, lines)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with subprocess.Popen(
        [sys.executable, "-m", "support.fakes.clickhouse_shim", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        yield Server(tmp_path, int(process.stdout.readline()))
        process.kill()


def tables(client: Client) -> set[str]:
    return set(str(client.command("SHOW TABLES FROM gangline")).split("\n"))


def test_a_server_has_its_tables_and_every_insert_is_acknowledged(server: Server) -> None:
    client = Engine(server.url, "gangline").client()
    waits: list[float] = []
    for _ in range(2):
        migrate(client, pause=waits.append)
    assert {"steps", "run_tags", "run_list"} <= tables(client)
    assert "migration_lock" not in tables(client)
    assert waits == []
    sink = ClickHouseSink(client)
    sink.insert("logs", ROWS)
    assert sink.positions(LOGS) == {("gangline.logs", 3): 42}
    for sql, settings in server.asked():
        if sql.startswith("INSERT"):
            assert settings["async_insert"] == "0"
            assert "insert_quorum" not in settings


def test_one_process_at_a_time_changes_the_tables(server: Server) -> None:
    mine, others = (Engine(server.url).client() for _ in range(2))
    mine.command("CREATE DATABASE gangline")

    def end(_: float) -> None:
        mine.command("DROP TABLE gangline.migration_lock")

    with locked(mine, lambda _: None), locked(others, end):
        assert "migration_lock" in tables(mine)
    assert "migration_lock" not in tables(mine)


def test_a_lock_that_was_left_behind_is_taken_over(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Engine(server.url).client()
    client.command("CREATE DATABASE gangline")
    client.command("CREATE TABLE gangline.migration_lock (x UInt8) ENGINE = Memory")
    monkeypatch.setattr("gangline_tracker.migrate.TRIES", 2)
    with pytest.raises(EngineUnavailable), locked(client, lambda _: None):
        pass
    assert STALE_S > 60
    monkeypatch.setattr("gangline_tracker.migrate.STALE_S", -1)
    with locked(client, lambda _: None):
        pass


def test_old_parts_get_the_roll_ups_that_were_added_since(server: Server) -> None:
    client = Engine(server.url).client()
    migrate(client)
    client.command("ALTER TABLE gangline.steps DROP PROJECTION by_run")
    client.command(
        "INSERT INTO gangline.steps SELECT 'nlp', 'a', 1, 0, number, now64(3), 'loss', 1, 0, "
        "number, now() FROM numbers(100)"
    )
    assert missing_roll_ups(client) == []
    migrate(client)
    found = client.query(
        "SELECT is_done OR 1 FROM system.mutations WHERE command LIKE '%MATERIALIZE%by_run%'"
    )
    assert len(found.result_rows) == 1
    client.command(
        "ALTER TABLE gangline.steps MATERIALIZE PROJECTION by_run SETTINGS mutations_sync = 1"
    )
    assert missing_roll_ups(client) == []


def test_the_tables_derive_the_id_of_a_job_s_mlflow_run_as_python_does(server: Server) -> None:
    client = Engine(server.url).client()
    migrate(client)
    jobs = "SELECT concat('job-', toString(number)) FROM numbers(100)"
    client.command(f"INSERT INTO gangline.runs (job_id) {jobs}")
    rows = client.query("SELECT job_id, mlflow_run_id FROM gangline.runs").result_rows
    assert len(rows) == 100
    assert dict(rows) == {job: mlflow_run_id(job) for job, _ in rows}


def test_the_tracker_writes_each_step_once_to_a_server_through_a_kill(
    server: Server, kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = {"GANGLINE_CLICKHOUSE": server.url}
    tracker = TrackerProcess(kafka_bootstrap, tmp_path_factory.mktemp("tracker"), own=own)
    count = "SELECT count(), uniqExact(step) FROM gangline.steps WHERE run_id = 'r'"
    try:
        tracker.start()
        client = Engine(server.url, "gangline").client()
        for first in range(0, 400, 20):
            steps = tuple(range(first, first + 20))
            metrics = {"loss": tuple(map(float, steps))}
            event = WorkerStep(
                run_id="r", team="nlp", attempt=1, rank=0, step=steps, time_ms=steps,
                metrics=metrics,
            )  # fmt: skip
            tracker.send(event, "r")
            if first == 200:
                wait_until("some steps", lambda: client.query(count).result_rows[0][1])
                tracker.end(signal.SIGKILL)
                tracker.start()
        tracker.settled()
        wait_until("all steps", lambda: client.query(count).result_rows[0][1] == 400)
        assert client.query(count).result_rows == [(400, 400)]
        assert tracker.end() == 0
    finally:
        tracker.close()
    inserts = [given for sql, given in server.asked() if sql.startswith("INSERT")]
    assert {given["async_insert"] for given in inserts} == {"0"}


@pytest.mark.parametrize(
    ("dsn", "cluster"), [("chdb:///x", "main"), ("http://x", "a' OR"), ("http://x", "")]
)
def test_a_cluster_is_named_and_a_server_s(dsn: str, cluster: str) -> None:
    with pytest.raises(EngineSettingsError, match="clickhouse_cluster"):
        Engine(dsn, cluster=cluster)


def test_a_cluster_has_replicated_tables_and_quorums(server: Server) -> None:
    client = Engine(server.url, "gangline", cluster="main").client()
    for statement in statements():
        client.command(statement)
    migrate(client, cluster="main", pause=lambda _: None)
    sink = ClickHouseSink(client)
    sink.insert("logs", ROWS)
    assert sink.positions(LOGS)
    asked = server.asked()
    clustered = [sql for sql, _ in asked if " ON CLUSTER 'main'" in sql]
    assert len(clustered) == len(statements())
    for sql in clustered:
        if sql.startswith("CREATE TABLE"):
            assert "ENGINE = Replicated" in sql, sql
            assert "('/clickhouse/tables/{shard}/{database}/{table}', '{replica}'" in sql
    assert any("'{replica}', version)" in sql for sql in clustered)
    (settings,) = (given for sql, given in asked if sql.startswith("INSERT"))
    assert (settings["async_insert"], settings["insert_quorum"]) == ("0", "auto")
    assert settings["insert_quorum_parallel"] == "0"
    (settings,) = (given for sql, given in asked if "max(offset)" in sql and "SELECT '" in sql)
    assert settings["select_sequential_consistency"] == "1"


@pytest.mark.nightly
def test_the_real_engine_makes_the_tables_of_a_cluster_with_zookeeper(tmp_path: Path) -> None:
    module = "support.harnesses.replicated_tables"
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as zookeeper:
        made = subprocess.run(
            [sys.executable, "-m", module, str(tmp_path), str(zookeeper.port)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
            capture_output=True,
            text=True,
            check=False,
        )
    assert made.returncode == 0, made.stderr
    engines = json.loads(made.stdout)
    created = re.compile(r"CREATE TABLE IF NOT EXISTS gangline\.(\w+)")
    names = {found[1] for found in map(created.match, statements()) if found}
    assert engines.keys() == names
    for name, engine in engines.items():
        place = rf"\('/clickhouse/tables/{{shard}}/gangline/{name}', '{{replica}}'(, version)?\)"
        assert re.match(rf"Replicated(Replacing)?MergeTree{place}", engine), engine
