"""The tracker's process over real Kafka and the real engine: rows equal records, doors hold."""

from __future__ import annotations

import http.client
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_bus.ports import OutRecord, TopicPartition
from gangline_gateway.comparison import compare
from gangline_gateway.curves import CurveError, CurveQuery, CurveReader
from gangline_gateway.history import History, RunFilter
from gangline_gateway.incidents import IncidentFilter, Incidents
from gangline_gateway.log_pages import LogFilter
from gangline_gateway.sql_parts import CursorError
from gangline_schemas.api.incidents import Share
from gangline_schemas.api.runs import Run
from gangline_schemas.catalog import Topic
from gangline_schemas.events.checkpoints import CheckpointCommitted, CheckpointDeleted
from gangline_schemas.events.faults import (
    FailureCause,
    FailureClass,
    GangFailed,
    GangTroubled,
    IncidentClosed,
    JobFlagged,
    WorkerStraggling,
)
from gangline_schemas.events.heartbeats import (
    GangStatus,
    GpuStatus,
    RankStatus,
    TroubleKind,
    WorkerHeartbeat,
)
from gangline_schemas.events.logs import LogLine, WorkerLog
from gangline_schemas.events.quota import UsageCharged
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangReleased,
    JobQueued,
    JobStateChanged,
    ReleaseReason,
)
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.events.workers import WorkerStacks
from gangline_schemas.job import JobSpec, JobState
from gangline_schemas.resources import Resources
from support.harnesses.tracker_process import TrackerProcess, wait_until

STORIES = "events WHERE topic != 'gangline.parts'"
"""Without what the tracker announces of itself."""
SLOW = "steps a, steps b, steps c, steps d"
BASE = datetime(2026, 5, 4, tzinfo=UTC)
BASE_MS = round(BASE.timestamp() * 1000)


OWN_A = {"job-a": "nlp"}
OWN = {"job-a": "nlp", "job-b": "nlp"}


def step_event(run: str, team: str, first: int, attempt: int = 1, loss: float = 1.0) -> WorkerStep:
    steps = tuple(range(first, first + 10))
    return WorkerStep(
        run_id=run,
        team=team,
        attempt=attempt,
        rank=0,
        step=steps,
        time_ms=tuple(BASE_MS + 100 * step for step in steps),
        metrics={"loss": tuple(loss / (1 + step) for step in steps), "lr": (0.1,) * 10},
    )


def log_event(job: str, team: str, first: int) -> WorkerLog:
    lines = tuple(
        LogLine(time_ms=BASE_MS + first + n, stream="stdout", text=f"line {first + n}")
        for n in range(5)
    )
    return WorkerLog(
        job_id=job, team=team, attempt=1, rank=0, node_id="n", first_line=first, lines=lines
    )


def job_spec(team: str, name: str, lr: float) -> JobSpec:
    return JobSpec(
        name=name,
        team=team,
        run="true",
        resources=Resources(gpus=2),
        hyperparameters={"lr": lr, "layers": 4},
    )


def story(tracker: TrackerProcess, job: str, spec: JobSpec, minute: int) -> None:
    """A job's decisions: queued, running, succeeded."""
    at = BASE + timedelta(minutes=minute)

    def moved(before: JobState, after: JobState) -> JobStateChanged:
        return JobStateChanged(job_id=job, attempt=1, previous=before, state=after)

    tracker.send(JobQueued(job_id=job, spec=spec, user="ann", submitted_at=at), job)
    tracker.send(moved(JobState.INITIALIZING, JobState.RUNNING), job)
    tracker.send(
        GangReleased(
            job_id=job,
            attempt=1,
            reason=ReleaseReason.SUCCEEDED,
            allocated_at=at,
            gpu_seconds=20.0,
        ),
        job,
    )
    tracker.send(moved(JobState.RUNNING, JobState.SUCCEEDED), job)
    tracker.send(
        UsageCharged(
            job_id=job,
            attempt=1,
            team=spec.team,
            gpus=2,
            allocated_at=at,
            released_at=at + timedelta(seconds=10),
            gpu_seconds=20.0,
        ),
        job,
    )
    ref = CheckpointRef(job_id=job, attempt=1, step=10, world_size=2, commit_key="k")
    tracker.send(CheckpointCommitted(job_id=job, checkpoint=ref, size_bytes=5, objects=3), job)
    newer = ref.model_copy(update={"step": 20})
    tracker.send(CheckpointCommitted(job_id=job, checkpoint=newer, size_bytes=5, objects=3), job)
    tracker.send(CheckpointDeleted(job_id=job, attempt=1, step=10, reason="keep 1"), job)
    for event in failures(job, spec.team, at):
        tracker.send(event, job)


def failures(job: str, team: str, at: datetime) -> list[GangFailed | IncidentClosed]:
    """A killed rank from which the job recovered after 2 s, and a node of which it has not yet."""
    killed = GangFailed(
        job_id=job,
        attempt=1,
        cause=FailureCause.PROCESS,
        failure_class=FailureClass.PROCESS,
        action="restart",
        message="rank 1 on node-2 was ended by SIGKILL",
        first_rank=1,
        node_id="node-2",
        avoid_nodes=("node-2",),
        restarts_used=1,
        restarts_max=3,
        failed_at=at,
        team=team,
        world_size=2,
        work_lost_s=5.0,
    )
    closed = IncidentClosed(
        job_id=job,
        team=team,
        attempt=1,
        failure_class=killed.failure_class,
        cause=killed.cause,
        action=killed.action,
        message=killed.message,
        first_rank=1,
        node_id="node-2",
        avoid_nodes=killed.avoid_nodes,
        failures=1,
        world_size=2,
        failed_at=at,
        next_attempt=2,
        running_at=at + timedelta(seconds=1),
        first_step_at=at + timedelta(seconds=2),
        outcome="recovered",
        closed_at=at + timedelta(seconds=3),
        recover_s=2.0,
        work_lost_s=5.0,
        down_s=2.0,
        lost_gpu_s=14.0,
    )
    node = killed.model_copy(
        update={
            "attempt": 2,
            "cause": FailureCause.NODE,
            "failure_class": FailureClass.NODE,
            "failed_at": at + timedelta(seconds=30),
            "work_lost_s": 10.0,
        }
    )
    return [killed, closed, node]


def beat(tracker: TrackerProcess, node: str, job: str) -> None:
    gang = GangStatus(job_id=job, attempt=1, ranks=(RankStatus(rank=0, pid=1),))
    tracker.send(
        WorkerHeartbeat(
            node_id=node,
            incarnation="i",
            sequence=1,
            sent_at=BASE,
            gangs=(gang,),
            gpus=(GpuStatus(index=0, utilization=50.0), GpuStatus(index=1, utilization=70.0)),
        ),
        node,
    )


def number(client: Client, sql: str) -> int:
    return int(client.query(sql).result_rows[0][0])


@pytest.fixture(scope="module")
def tracker(
    kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TrackerProcess]:
    """Two teams' finished jobs, all of them in the database."""
    process = TrackerProcess(kafka_bootstrap, tmp_path_factory.mktemp("tracker"))
    try:
        process.start()
        story(process, "job-a", job_spec("nlp", "first", 0.1), minute=0)
        story(process, "job-b", job_spec("nlp", "second", 0.2), minute=1)
        story(process, "job-c", job_spec("vision", "theirs", 0.3), minute=2)
        for job, team in (("job-a", "nlp"), ("job-b", "nlp"), ("job-c", "vision")):
            for first in range(0, 100, 10):
                process.send(step_event(job, team, first), job)
            process.send(step_event(job, team, 90, attempt=2, loss=5.0), job)
            for first in range(0, 50, 5):
                process.send(log_event(job, team, first), job)
        beat(process, "node-1", "job-a")
        beat(process, "node-2", "job-c")
        process.settled()
        client = process.client()
        wait_until("steps", lambda: number(client, "SELECT count() FROM steps") == 3 * 11 * 20)
        wait_until("logs", lambda: number(client, "SELECT count() FROM logs") == 3 * 50)
        wait_until("events", lambda: number(client, f"SELECT count() FROM {STORIES}") == 3 * 11)
        wait_until("beats", lambda: number(client, "SELECT count() FROM heartbeats") == 2)
        yield process
        assert process.end() == 0
    finally:
        process.close()


@pytest.fixture
def history(tracker: TrackerProcess) -> History:
    return History(tracker.client("service"))


@pytest.fixture
def curves(tracker: TrackerProcess) -> CurveReader:
    return CurveReader(tracker.client("service"))


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
            ("incidents", "job_id"),
            ("incident_list", "job_id"),
            ("checkpoints", "job_id"),
            ("checkpoint_list", "job_id"),
            ("events", "subject"),
        ):
            query = sql.format(table=f"gangline.{table}", column=column)
            assert number(client, query) == 0, query
    assert client.query("SELECT DISTINCT node_id FROM node_samples").result_rows == [("node-1",)]
    assert number(client, "SELECT count() FROM events WHERE subject = 'job-a'") == 11
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


def test_runs_are_listed_page_by_page(history: History) -> None:
    first = history.runs(limit=2)
    assert [run.run_id for run in first.runs] == ["job-c", "job-b"]
    second = history.runs(limit=2, cursor=first.cursor)
    assert ([run.run_id for run in second.runs], second.cursor) == (["job-a"], None)
    nlp = RunFilter(teams=frozenset({"nlp"}), states=("succeeded",), name_contains="eco")
    assert [run.run_id for run in history.runs(nlp).runs] == ["job-b"]
    assert history.runs(RunFilter(submitted_before=BASE)).runs == []
    with pytest.raises(CursorError):
        history.runs(cursor="x' OR 1.1")
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
    assert curves.names(OWN_A) == ["loss", "lr"]


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
    client = tracker.client()
    wait_until(
        "rows", lambda: number(client, "SELECT count() FROM steps WHERE run_id = 'long'") == 11_000
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


def test_runs_are_filtered_and_ordered(history: History) -> None:
    def found(where: str, *order_by: str) -> list[str]:
        page = history.runs(RunFilter(where=where, order_by=order_by))
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
    wanted = RunFilter(order_by=("metrics.nothing", "params.lr DESC"))
    pages, cursor = [], None
    while True:
        page = history.runs(wanted, limit=1, cursor=cursor)
        pages += [run.run_id for run in page.runs]
        cursor = page.cursor
        if cursor is None:
            break
    assert pages == ["job-c", "job-b", "job-a"]


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=40))
def test_no_value_of_a_filter_is_sql(tracker: TrackerProcess, text: str) -> None:
    """Values and names are compared as they are, and the engine takes the query."""
    history = History(tracker.client("service"))
    quoted = text.replace("'", "''")
    known = history.runs().runs

    def check(where: str, expected: list[Run]) -> None:
        assert history.runs(RunFilter(where=where)).runs == expected

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


def test_rows_of_another_team_are_never_those_of_a_job(
    history: History, curves: CurveReader
) -> None:
    """Whoever writes rows under the id of a job does so as a team: only the job's own count."""
    assert history.logs(LogFilter("job-a", "vision")).lines == []
    assert curves.curves(CurveQuery({"job-a": "vision"}, ["loss"])) == []
    assert curves.names({"job-a": "vision"}) == []
    assert curves.latest({"job-a": "vision", "job-b": "vision"}) == {}
    mixed = curves.curves(CurveQuery({"job-a": "vision", "job-c": "vision"}, ["loss"]))
    assert [curve.run_id for curve in mixed] == ["job-c"]


def test_incidents_are_listed_page_by_page_with_their_totals(tracker: TrackerProcess) -> None:
    incidents = Incidents(tracker.client("service"))
    everything = IncidentFilter()
    first, cursor = incidents.page(everything, limit=4)
    rest, end = incidents.page(everything, limit=4, cursor=cursor)
    found = [(row.job_id, row.attempt, row.outcome) for row in first + rest]
    assert found == [
        (job, attempt, outcome)
        for job in ("job-c", "job-b", "job-a")
        for attempt, outcome in ((2, "open"), (1, "recovered"))
    ]
    assert end is None
    closed = rest[-1]
    assert (closed.recover_s, closed.lost_gpu_s, closed.avoid_nodes) == (2.0, 14.0, ["node-2"])
    assert (closed.failed_at, closed.review, closed.allocated_at) == (BASE, False, None)
    opened = rest[-2]
    assert (opened.failure_class, opened.lost_gpu_s, opened.recover_s) == ("node", 20.0, None)
    totals = incidents.totals(everything)
    assert (totals.incidents, totals.recovered, totals.lost_gpu_s) == (6, 3, 102.0)
    assert (totals.recover_median_s, totals.recover_p95_s) == (2.0, 2.0)
    assert totals.by_class == [
        Share(name="node", incidents=3, lost_gpu_s=60.0),
        Share(name="process", incidents=3, lost_gpu_s=42.0),
    ]
    assert totals.by_node == [Share(name="node-2", incidents=6, lost_gpu_s=102.0)]
    assert totals.by_job == [
        Share(name=f"job-{name}", incidents=2, lost_gpu_s=34.0) for name in "abc"
    ]
    assert totals.by_shard == []


def test_incidents_are_chosen(tracker: TrackerProcess) -> None:
    incidents = Incidents(tracker.client("service"))

    def jobs(wanted: IncidentFilter) -> list[tuple[str, int]]:
        return [(row.job_id, row.attempt) for row in incidents.page(wanted)[0]]

    assert jobs(IncidentFilter(teams=frozenset({"vision"}))) == [("job-c", 2), ("job-c", 1)]
    assert jobs(IncidentFilter(job_id="job-a", classes=("node",))) == [("job-a", 2)]
    assert jobs(IncidentFilter(since=BASE + timedelta(minutes=2, seconds=30))) == [("job-c", 2)]
    assert jobs(IncidentFilter(node_id="node-9")) == []
    nothing = incidents.totals(IncidentFilter(job_id="nobody"))
    assert (nothing.incidents, nothing.recover_median_s, nothing.by_node) == (0, None, [])
    with pytest.raises(CursorError):
        incidents.page(IncidentFilter(), cursor="1.job")


def test_one_incident_is_found_with_its_stacks_and_what_was_noticed(
    tracker: TrackerProcess,
) -> None:
    for rank in (1, 0):
        for attempt in (1, 2):
            stacks = WorkerStacks(
                job_id="job-a",
                attempt=attempt,
                rank=rank,
                node_id=f"node-{rank}",
                pid=7,
                state="stopped",
                stacks=f"of attempt {attempt}",
            )
            tracker.send(stacks, "job-a")
    slow = WorkerStraggling(
        job_id="job-a", attempt=2, team="nlp", rank=1, node_id="node-1", busy_s=0.4, usual_s=0.2,
        against="gang", relative=0.5, individual=1.0, host=0.5, message="rank 1 is slow",
        since=BASE, noted_at=BASE,
    )  # fmt: skip
    tracker.send(slow, "job-a")
    spike = GangTroubled(
        job_id="job-c", attempt=1, team="vision", kind=TroubleKind.LOSS_SPIKE, rank=0,
        node_id="node-2", step=9, message="the loss leapt up", noted_at=BASE,
    )  # fmt: skip
    tracker.send(spike, "job-c")
    for block in (3, 4):
        flagged = JobFlagged(
            job_id="job-c", attempt=1, rank=0, node_id="node-2", snapshot="corpus", shard="s-1",
            block=block, reason="its digest differs", flagged_at=BASE,
        )  # fmt: skip
        tracker.send(flagged, "job-c")
    incidents = Incidents(tracker.client("service"))
    blocks = [Share(name="corpus/s-1", incidents=2, lost_gpu_s=0.0)]
    wait_until("flags", lambda: incidents.totals(IncidentFilter()).by_shard == blocks)
    vision, nlp = frozenset({"vision"}), frozenset({"nlp"})
    assert incidents.totals(IncidentFilter(teams=vision)).by_shard == blocks
    assert incidents.totals(IncidentFilter(teams=nlp)).by_shard == []
    assert incidents.totals(IncidentFilter(job_id="job-a")).by_shard == []
    wait_until("both notices", lambda: len(incidents.notices(IncidentFilter())) == 2)

    def noticed(wanted: IncidentFilter) -> list[tuple[str, int, str, int, str, str]]:
        return [
            (row.job_id, row.attempt, row.kind, row.rank, row.node_id, row.message)
            for row in incidents.notices(wanted)
        ]

    of_a = ("job-a", 2, "straggling", 1, "node-1", "rank 1 is slow")
    of_c = ("job-c", 1, "loss_spike", 0, "node-2", "the loss leapt up")
    assert {*noticed(IncidentFilter())} == {of_a, of_c}
    assert noticed(IncidentFilter(job_id="job-a")) == [of_a]
    assert noticed(IncidentFilter(teams=frozenset({"vision"}))) == [of_c]
    assert noticed(IncidentFilter(node_id="node-2", since=BASE)) == [of_c]
    assert noticed(IncidentFilter(classes=("node",))) == []
    found = incidents.one("job-a", 2, None)
    assert found is not None
    assert (found.attempt, found.outcome) == (2, "open")
    assert incidents.one("job-a", 2, frozenset({"vision"})) is None
    assert incidents.one("job-a", 9, None) is None
    told = incidents.stacks("job-a", 2)
    assert [(item.rank, item.node_id, item.stacks) for item in told] == [
        (0, "node-0", "of attempt 2"),
        (1, "node-1", "of attempt 2"),
    ]


def test_rows_equal_records_after_kill_9(kafka_bootstrap: str, tmp_path: Path) -> None:
    process = TrackerProcess(kafka_bootstrap, tmp_path)
    try:
        rounds, per_round = 3, 150
        for turn in range(rounds):
            process.start()
            for index in range(per_round):
                count = turn * per_round + index
                run = f"run-{count % 7}"
                process.send(step_event(run, "nlp", 10 * count), run)
                process.send(log_event(run, "nlp", 5 * count), run)
                queued = JobQueued(
                    job_id=f"job-{count}",
                    spec=job_spec("nlp", "x", 0.1),
                    user="ann",
                    submitted_at=BASE,
                )
                process.send(queued, run)
            process.settled()
            client = process.client()
            # Killed somewhere between two INSERTs: some rows of this round are there, not all.
            wait_until("rows", lambda: number(client, "SELECT count() FROM steps") > turn * 3000)  # noqa: B023
            process.end(signal.SIGKILL)
        garbage = OutRecord(process.names.name(Topic.STEPS), b"k", b"no event", ())
        process.writer.send(garbage)
        process.settled()
        process.start()
        client = process.client()
        total = rounds * per_round
        for table, rows in (("steps", 20), ("logs", 5), (STORIES, 1)):
            wait_until(
                f"{rows * total} rows in {table}",
                lambda: number(client, f"SELECT count() FROM {table}") >= rows * total,  # noqa: B023
            )
            assert number(client, f"SELECT count() FROM {table}") == rows * total
        assert number(client, "SELECT uniqExact(partition, offset, name, step) FROM steps") == (
            20 * total
        )
        assert number(client, "SELECT uniqExact(partition, offset, line) FROM logs") == 5 * total
        assert number(client, f"SELECT uniqExact(topic, partition, offset) FROM {STORIES}") == total
        assert number(client, "SELECT count() FROM run_list") == total
        dlq = TopicPartition(process.names.dlq(process.names.name(Topic.STEPS)), 0)
        wait_until("the refused record", lambda: process.bus.end_offsets([dlq])[dlq] == 1)
        assert process.end() == 0
    finally:
        process.close()
