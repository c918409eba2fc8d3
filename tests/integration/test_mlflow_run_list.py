"""The gateway's filter over MLflow's own tables, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("mlflow")

import sqlalchemy as sa
from mlflow import MlflowClient
from mlflow.store.db.utils import _initialize_tables
from mlflow.store.tracking.dbmodels.models import Base
from sqlalchemy.orm import Session

from gangline.local.kafka import EmbeddedKafka
from gangline.sdk import connect
from gangline_gateway.history import RunFilter
from gangline_gateway.run_list import page_of, search_of
from gangline_mlflow.run_list import found
from gangline_schemas.events.scheduling import JobQueued
from gangline_schemas.job import JobSpec
from gangline_schemas.mlflow_workspace import mlflow_run_id
from support.harnesses.mlflow_gateway import mlflow_gateway
from support.harnesses.postgres import EmbeddedPostgres
from support.waiting import wait_until

T0 = 1_767_225_600_000


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("runs")
    if request.param == "sqlite":
        yield f"sqlite:///{folder / 'test.db'}"
        return
    with EmbeddedPostgres(folder / "postgres") as postgres:
        yield postgres.database("mlflow")


@pytest.fixture(scope="module")
def session(database: str) -> Iterator[Session]:
    engine = sa.create_engine(database)
    _initialize_tables(engine)
    with closing_engine(engine), Session(engine) as opened:
        for number, (name, workspace) in enumerate(
            [("nlp/chat", "nlp"), ("notebook", "nlp"), ("team-x/default", "team-team-x")]
        ):
            insert(opened, "experiments", experiment_id=number, name=name, workspace=workspace,
                   lifecycle_stage="active", creation_time=0, last_update_time=0)  # fmt: skip
        add(opened, "a", 0, 0, metrics={"loss": 0.5}, params={"lr": "0.1", "net": "Re_s%Net"})
        add(opened, "b", 1, 1000, status="RUNNING", params={"lr": "1e-3"}, user="",
            tags={"mlflow.user": "ben", "stage": "x"})  # fmt: skip
        add(opened, "c", 1, 2000, metrics={"loss": 2.0, "nan": None}, params={"lr": "fast"},
            tags={"mlflow.source.git.commit": "abc"})  # fmt: skip
        add(opened, "d", 2, 3000, metrics={"loss": 1.0})
        add(opened, "job", 0, 9000, source="JOB", metrics={"loss": 0.1})
        add(opened, "gone", 1, 9000, stage="deleted", metrics={"loss": 0.1})
        opened.commit()
        yield opened


@contextmanager
def closing_engine(engine: sa.Engine) -> Iterator[None]:
    try:
        yield
    finally:
        engine.dispose()


def insert(session: Session, table: str, **values: Any) -> None:
    session.execute(Base.metadata.tables[table].insert().values(**values))


def add(
    session: Session,
    run: str,
    experiment: int,
    at_ms: int,
    *,
    status: str = "FINISHED",
    user: str = "ada",
    source: str = "UNKNOWN",
    stage: str = "active",
    metrics: dict[str, float | None] | None = None,
    params: dict[str, str] | None = None,
    tags: dict[str, str] | None = None,
) -> None:
    ends = None if status == "RUNNING" else T0 + at_ms + 7_200_000
    insert(session, "runs", run_uuid=run, name=f"name-{run}", experiment_id=experiment,
           user_id=user, status=status, source_type=source, start_time=T0 + at_ms, end_time=ends,
           lifecycle_stage=stage)  # fmt: skip
    for key, value in (metrics or {}).items():
        insert(session, "latest_metrics", run_uuid=run, key=key, value=value or 0.0, timestamp=0,
               step=0, is_nan=value is None)  # fmt: skip
    for table, pairs in (("params", params or {}), ("tags", tags or {})):
        for key, text in pairs.items():
            insert(session, table, run_uuid=run, key=key, value=text)


def runs(session: Session, where: str = "", *order_by: str, **wanted: Any) -> str:
    """The names of all found runs, read page by page."""
    asked = RunFilter(where=where, order_by=order_by, **wanted)
    names, cursor = "", None
    while True:
        page = page_of(found(session, search_of(asked, limit=2, cursor=cursor)), asked, 2)
        names += "".join(run.run_id for run in page.runs)
        cursor = page.cursor
        if cursor is None:
            return names


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("", "dcba"),
        ("metrics.loss < 2", "da"), ("metrics.loss IN (2, 1)", "dc"),
        ("metrics.loss IS NULL", "b"), ("metrics.nan != 5", ""), ("metrics.loss NOT IN (2)", "da"),
        ("params.lr < 0.2", "ba"), ("params.lr = '0.1'", "a"), ("params.lr > 'a'", None),
        ("params.net LIKE 'Re_s%'", "a"), ("params.net LIKE 're%'", ""),
        ("params.net ILIKE 're%'", "a"), ("params.net LIKE '%[a-z]%'", ""),
        ("params.net LIKE 'Re\\_s%'", ""),
        ("tags.stage = 'x' and user = 'ben'", "b"), ("tags.`mlflow.user` IS NOT NULL", "b"),
        ("project = 'chat'", "a"), ("project = 'notebook'", "cb"), ("project IS NULL", "d"),
        ("team = 'team-x'", "d"), ("state = 'running'", "b"), ("state != 'running'", "dca"),
        ("code_ref = 'abc'", "c"), ("name LIKE '%-a'", "a"), ("run_id IN ('a', 'job')", "a"),
        ("hours = 2", "dca"), ("ended_at IS NULL", "b"), ("gpus >= 0", ""), ("gpu_hours < 1", ""),
        ("image = ''", ""), ("submitted_at >= '2026-01-01T00:00:02Z'", "dc"),
        ("start_time < 1767225601000", "a"), ("params.`a\0b` = 'x\0'", ""),
    ],
)  # fmt: skip
def test_a_filter_finds_runs(session: Session, where: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(ValueError, match="its operators are"):
            runs(session, where)
        return
    assert runs(session, where) == expected


@pytest.mark.parametrize(
    ("order_by", "expected"),
    [
        (["metrics.loss"], "adcb"), (["metrics.loss DESC"], "cdab"),
        (["params.lr"], "abcd"), (["team DESC", "submitted_at ASC"], "dabc"),
        (["user", "name DESC"], "dcab"), (["gpus", "hours DESC", "run_id ASC"], "acdb"),
    ],
)  # fmt: skip
def test_an_order_leads_through_all_pages(
    session: Session, order_by: list[str], expected: str
) -> None:
    assert runs(session, "", *order_by) == expected


def test_other_parts_of_a_search(session: Session) -> None:
    assert runs(session, teams=frozenset({"nlp"})) == "cba"
    assert runs(session, teams=frozenset({"team-x", "other"})) == "d"
    assert runs(session, states=("running",), users=("ben",), projects=("notebook",)) == "b"
    assert runs(session, name_contains="e-a") == "a"


def test_a_run_of_a_job_is_found_by_its_id_alone(session: Session) -> None:
    asked = search_of(RunFilter(), limit=5, cursor=None).model_copy(update={"run_ids": ("job",)})
    assert [each.run.run_id for each in found(session, asked)] == ["job"]


def test_the_fields_of_a_run(session: Session) -> None:
    (run,) = (each.run for each in found(session, search_of(RunFilter(where="run_id = 'b'"),
              limit=1, cursor=None)))  # fmt: skip
    assert (run.team, run.project, run.name, run.user) == ("nlp", "notebook", "name-b", "ben")
    assert (run.state, run.ended_at, run.tags) == ("running", None, {"stage": "x"})
    assert run.hyperparameters == {"lr": "1e-3"}
    assert run.submitted_at.timestamp() * 1000 == T0 + 1000


def test_jobs_and_runs_of_clients_are_one_list(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mlflow_gateway(kafka.bootstrap, tmp_path / "server") as served:
        spec = JobSpec.model_validate(
            {
                "name": "sft", "team": "nlp", "project": "chat", "run": "x",
                "resources": {"gpus": 1}, "hyperparameters": {"lr": 0.2},
            }
        )  # fmt: skip
        queued = JobQueued(job_id="job-1", spec=spec, user="ada", submitted_at=datetime.now(UTC))
        served.mlflow.tracker.send(queued, "job-1")
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", served.tokens["nlp"])
        client = MlflowClient(served.tracking_uri("nlp"))
        wait_until("the job's run", lambda: client.get_experiment_by_name("nlp/chat"))
        experiment = client.get_experiment_by_name("nlp/chat").experiment_id
        logged = client.create_run(experiment, run_name="by hand").info.run_id
        client.log_param(logged, "lr", 0.3)
        client.log_metric(logged, "loss", 0.5)
        where = "params.lr > 0.1 and project = 'chat'"
        with connect(served.url, served.tokens["nlp"]) as nlp:
            wait_until("the job", lambda: [*nlp.runs(kind="job")])
            found = [run.run_id for run in nlp.runs(where=where, order_by=["params.lr"])]
            assert found == ["job-1", logged]
            newest = [run.run_id for run in nlp.runs(order_by=["metrics.loss"])]
            assert newest == [logged, "job-1"], "the job's own MLflow run is not there again"
            assert [run.run_id for run in nlp.runs()] == ["job-1"]
            assert [run.run_id for run in nlp.runs(where=where, kind="job")] == ["job-1"]
            assert [run.run_id for run in nlp.runs(kind="all")] == [logged, "job-1"]
            one = f"{served.url}/v1/runs"
            headers = {"authorization": f"Bearer {served.tokens['nlp']}"}
            asked = {"where": where, "order_by": "params.lr DESC", "limit": "1"}
            first = httpx.get(one, params=asked, headers=headers).json()
            second = httpx.get(one, params={**asked, "cursor": first["cursor"]}, headers=headers)
            pages = [first, second.json()]
            assert [page["runs"][0]["run_id"] for page in pages] == [logged, "job-1"]
            assert pages[1]["cursor"] is None
            compared = nlp.compare([logged, mlflow_run_id("job-1")])
            assert [run.name for run in compared.runs] == ["by hand", "job-1"]
        with connect(served.url, served.tokens["vision"]) as vision:
            assert [*vision.runs(where=where)] == []
