"""The tracker's ports: who reads what, limits of queries, and rows of one job and team."""

from __future__ import annotations

import http.client
from contextlib import closing
from urllib.parse import quote, urlsplit

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from gangline_gateway.curves import CurveQuery, CurveReader
from gangline_gateway.history import History
from gangline_gateway.log_pages import LogFilter
from support.fixtures.tracker import number
from support.harnesses.tracker_process import TrackerProcess

SLOW = "steps a, steps b, steps c, steps d"


def test_the_genuine_client_reads_and_cannot_write(tracker: TrackerProcess) -> None:
    client = tracker.client()
    assert client.server_version.count(".") >= 2
    assert "steps" in str(client.command("SHOW TABLES")).split("\n")
    assert client.query_arrow("SELECT * FROM steps").num_rows == 660
    for statement in (
        "INSERT INTO steps (team) VALUES ('x')",
        "DROP TABLE steps",
        "CREATE TABLE x (a UInt8) ENGINE = Memory",
        "SELECT 1 INTO OUTFILE '/tmp/gangline-never'",
    ):
        with pytest.raises(DatabaseError):
            client.command(statement)
    with pytest.raises(DatabaseError):
        client.insert("steps", [["x"]], column_names=["team"])
    assert number(client, "SELECT count() FROM steps") == 660


def test_a_team_sees_its_own_rows_only(tracker: TrackerProcess) -> None:
    client = tracker.client("nlp")
    assert client.query("SELECT DISTINCT team FROM steps").result_rows == [("nlp",)]
    for sql in (
        "SELECT count() FROM {table} WHERE {column} = 'job-c'",
        "SELECT count() FROM (SELECT * FROM {table}) WHERE {column} = 'job-c'",
        "WITH 'nlp' AS team SELECT count() FROM {table} WHERE {column} = 'job-c'",
        "WITH 'nlp' AS team, 'job-a' AS job_id SELECT countIf({column} = 'job-c') FROM {table}",
        "SELECT count() FROM {table} AS team WHERE {column} = 'job-c'",
        "WITH x AS (SELECT {column} AS c FROM {table}) SELECT countIf(c = 'job-c') FROM x",
    ):
        for table, column in (
            ("steps", "run_id"),
            ("run_curves", "run_id"),
            ("logs", "job_id"),
            ("runs", "job_id"),
            ("run_list", "job_id"),
            ("usage", "job_id"),
            ("run_tags", "job_id"),
            ("incidents", "job_id"),
            ("incident_list", "job_id"),
            ("checkpoints", "job_id"),
            ("checkpoint_list", "job_id"),
            ("lineage", "job_id"),
            ("events", "subject"),
        ):
            query = sql.format(table=f"gangline.{table}", column=column)
            assert number(client, query) == 0, query
    assert client.query("SELECT DISTINCT node_id FROM node_samples").result_rows == [("node-1",)]
    assert number(client, "SELECT count() FROM events WHERE subject = 'job-a'") == 14
    assert number(tracker.client("vision"), "SELECT uniq(subject) FROM events") == 1


def get(tracker: TrackerProcess, path: str, **headers: str) -> tuple[int, bytes]:
    where = urlsplit(tracker.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
    with closing(connection):
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_the_door(tracker: TrackerProcess) -> None:
    key = {"X-ClickHouse-Key": tracker.tokens["nlp"]}
    ask = "/?query=" + quote("SELECT 1")
    assert get(tracker, "/ping") == (200, b"Ok.\n")
    assert get(tracker, ask, **key) == (200, b"1\n")
    assert get(tracker, ask + "&default_format=JSON&max_execution_time=0", **key)[0] == 200
    assert get(tracker, ask)[0] == 401
    assert get(tracker, ask, **{"X-ClickHouse-Key": "wrong"})[0] == 401
    assert get(tracker, ask + "&password=" + tracker.tokens["nlp"])[0] == 401
    assert get(tracker, ask, Host="evil.example", **key)[0] == 403
    assert get(tracker, ask, Origin="http://127.0.0.1", **key)[0] == 403
    assert get(tracker, ask + "&database=system", **key)[0] == 404
    assert get(tracker, ask + "&default_format=Npy", **key)[0] == 400
    slow = quote("SELECT max(cityHash64(a.step, b.step, c.step, d.step)) FROM " + SLOW)
    status, body = get(tracker, f"/?query={slow}&max_execution_time=0", **key)
    assert status == 400, body
    assert b"Code: 159" in body or b"Code: 241" in body  # its own limits, not the client's


def test_a_failed_query_leaves_nothing_for_the_next_one(tracker: TrackerProcess) -> None:
    admin = {"X-ClickHouse-Key": tracker.tokens["admin"]}
    member = {"X-ClickHouse-Key": tracker.tokens["nlp"]}
    bad = quote("SELECT text, toUInt8(text) FROM logs ORDER BY line")
    good = quote("SELECT 'mine'")
    for _ in range(5):
        assert get(tracker, f"/?query={bad}", **admin)[0] == 400
        assert get(tracker, f"/?query={good}", **member) == (200, b"mine\n")


def test_rows_of_another_team_are_never_those_of_a_job(
    history: History, curves: CurveReader
) -> None:
    """Rows under the id of a job have the team that wrote them: only the job's own count."""
    assert history.logs(LogFilter("job-a", "vision")).lines == []
    assert curves.curves(CurveQuery({"job-a": "vision"}, ["loss"])) == []
    assert curves.names({"job-a": "vision"}) == []
    assert curves.latest({"job-a": "vision", "job-b": "vision"}) == {}
    mixed = curves.curves(CurveQuery({"job-a": "vision", "job-c": "vision"}, ["loss"]))
    assert [curve.run_id for curve in mixed] == ["job-c"]
